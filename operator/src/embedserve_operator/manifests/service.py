"""Builds the Services: one that clients use, with the name of the resource, and one for each
vector space, with the name of that space.

The first always leads to the pods of one revision, and after a switch to those of another. The others never
lead to another space.
"""

from __future__ import annotations

from embedserve_operator.api.network import ServiceSettings
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.metadata import (
    REVISION_LABEL,
    SCRAPE_LABEL,
    SERVICE_LABEL,
    SPACE_LABEL,
    add_fingerprint,
    build_metadata,
    build_selector,
    build_space_name,
)
from embedserve_operator.state.resource import Resource

_SHARED_FIELDS = ("ipFamilyPolicy", "ipFamilies")
"""The settings that hold for all Services."""


def build_service(
    resource: Resource, settings: ServiceSettings, revision: str, space: str | None
) -> Manifest:
    """Return the Service with the name of the resource, which leads to the pods of a revision, which make
    vectors of `space`.
    """
    fields = settings.as_wire()
    annotations = fields.pop("annotations", None)
    ports = _build_ports(fields.pop("grpcPort", None), http="http", grpc="grpc")
    spec = {**fields, "selector": build_selector(resource, revision), "ports": ports}
    manifest = _build_service(resource, resource.key.name, space, spec)
    manifest["metadata"]["labels"][SCRAPE_LABEL] = "true"
    if annotations:
        manifest["metadata"]["annotations"] = annotations
    return add_fingerprint(manifest)


def _build_ports(grpc_port: int | None, *, http: str, grpc: str) -> list[Manifest]:
    """Return the ports of a Service with the names of the ports of the pods behind them.

    `grpc_port` is None without gRPC.
    """
    ports = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": http, "appProtocol": "http"}]
    if grpc_port is not None:
        h2c = "kubernetes.io/h2c"
        ports.append(
            {"name": "grpc", "port": grpc_port, "protocol": "TCP", "targetPort": grpc, "appProtocol": h2c}
        )
    return ports


def build_space_service(
    resource: Resource,
    settings: ServiceSettings,
    space: str,
    *,
    is_current: bool,
    revision: str | None = None,
) -> Manifest:
    """Return the Service with the name of a vector space.

    `is_current` says that the Service of the resource leads to the same pods. `revision` is the only one that it
    leads to; None for all that make the space.
    """
    fields = {key: value for key, value in settings.as_wire().items() if key in _SHARED_FIELDS}
    pods = {SERVICE_LABEL: resource.key.name, SPACE_LABEL: space}
    if revision is not None:
        pods[REVISION_LABEL] = revision
    ports = _build_ports(settings.grpc_port, http="pinned", grpc="pinned-grpc")
    spec = {**fields, "selector": pods, "ports": ports}
    manifest = _build_service(resource, build_space_name(resource, space), space, spec)
    if not is_current:
        manifest["metadata"]["labels"][SCRAPE_LABEL] = "true"
    return add_fingerprint(manifest)


def _build_service(resource: Resource, name: str, space: str | None, spec: Manifest) -> Manifest:
    meta = build_metadata(resource, name)
    if space is not None:
        meta["labels"][SPACE_LABEL] = space
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def format_url(resource: Resource, space: str | None = None) -> str:
    """Return the base URL inside the cluster; with a space, that of the Service of the space."""
    name = resource.key.name if space is None else build_space_name(resource, space)
    return f"http://{name}.{resource.key.namespace}.svc"


def format_grpc_address(resource: Resource, settings: ServiceSettings) -> str | None:
    """Return the host and port for gRPC inside the cluster; None without gRPC."""
    if settings.grpc_port is None:
        return None
    return f"{resource.key.name}.{resource.key.namespace}.svc:{settings.grpc_port}"
