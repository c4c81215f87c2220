"""The Services: one that clients use, of the resource's name, and one for each vector space, of that space's name.

The first always leads to one revision's pods, and to another's after a switch. The second never leads to another space.
"""

from __future__ import annotations

from embedserve_operator.api.network import ServiceSettings
from embedserve_operator.specs.metadata import (
    SCRAPE_LABEL,
    SERVICE_LABEL,
    SPACE_LABEL,
    fingerprinted,
    metadata,
    selector,
    space_name,
)
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Resource

_SHARED_FIELDS = ("ipFamilyPolicy", "ipFamilies")
"""Of the settings, what holds for all Services."""


def service(resource: Resource, settings: ServiceSettings, revision: str, space: str | None) -> Manifest:
    """The Service of the resource's name, steering to the pods of a revision, which make vectors of `space`."""
    fields = settings.as_wire()
    annotations = fields.pop("annotations", None)
    ports = _ports(fields.pop("grpcPort", None), http="http", grpc="grpc")
    made = _service(resource, resource.key.name, space, fields, selector(resource, revision), ports=ports)
    made["metadata"]["labels"][SCRAPE_LABEL] = "true"
    if annotations:
        made["metadata"]["annotations"] = annotations
    return fingerprinted(made)


def _ports(grpc_port: int | None, *, http: str, grpc: str) -> list[Manifest]:
    """With the names of the pods' ports behind them. grpc_port: None without gRPC."""
    found = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": http, "appProtocol": "http"}]
    if grpc_port is not None:
        h2c = "kubernetes.io/h2c"
        found.append(
            {"name": "grpc", "port": grpc_port, "protocol": "TCP", "targetPort": grpc, "appProtocol": h2c}
        )
    return found


def space_service(resource: Resource, settings: ServiceSettings, space: str, *, is_current: bool) -> Manifest:
    """The Service of a vector space's own name. `is_current`: the pods are those of the resource's name, too."""
    fields = {key: value for key, value in settings.as_wire().items() if key in _SHARED_FIELDS}
    pods = {SERVICE_LABEL: resource.key.name, SPACE_LABEL: space}
    ports = _ports(settings.grpc_port, http="pinned", grpc="pinned-grpc")
    made = _service(resource, space_name(resource, space), space, fields, pods, ports=ports)
    if not is_current:
        made["metadata"]["labels"][SCRAPE_LABEL] = "true"
    return fingerprinted(made)


def _service(
    resource: Resource,
    name: str,
    space: str | None,
    fields: Manifest,
    pods: dict[str, str],
    *,
    ports: list[Manifest],
) -> Manifest:
    meta = metadata(resource, name)
    if space is not None:
        meta["labels"][SPACE_LABEL] = space
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {**fields, "selector": pods, "ports": ports},
    }


def url(resource: Resource, space: str | None = None) -> str:
    """Base URL inside the cluster; with a space, of that space's own name."""
    name = resource.key.name if space is None else space_name(resource, space)
    return f"http://{name}.{resource.key.namespace}.svc"


def grpc_address(resource: Resource, settings: ServiceSettings) -> str | None:
    """Host and port for gRPC inside the cluster; None without it."""
    if settings.grpc_port is None:
        return None
    return f"{resource.key.name}.{resource.key.namespace}.svc:{settings.grpc_port}"
