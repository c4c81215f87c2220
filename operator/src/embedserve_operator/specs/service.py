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
    grpc = fields.pop("grpcPort", None)
    made = _service(resource, resource.key.name, space, fields, selector(resource, revision), port="http")
    made["metadata"]["labels"][SCRAPE_LABEL] = "true"
    if annotations:
        made["metadata"]["annotations"] = annotations
    if grpc is not None:
        made["spec"]["ports"].append(_grpc(grpc))
    return fingerprinted(made)


def _grpc(port: int) -> Manifest:
    return {
        "name": "grpc",
        "port": port,
        "protocol": "TCP",
        "targetPort": "grpc",
        "appProtocol": "kubernetes.io/h2c",
    }


def space_service(resource: Resource, settings: ServiceSettings, space: str, *, is_current: bool) -> Manifest:
    """The Service of a vector space's own name. `is_current`: the pods are those of the resource's name, too."""
    fields = {key: value for key, value in settings.as_wire().items() if key in _SHARED_FIELDS}
    pods = {SERVICE_LABEL: resource.key.name, SPACE_LABEL: space}
    made = _service(resource, space_name(resource, space), space, fields, pods, port="pinned")
    if not is_current:
        made["metadata"]["labels"][SCRAPE_LABEL] = "true"
    return fingerprinted(made)


def _service(
    resource: Resource, name: str, space: str | None, fields: Manifest, pods: dict[str, str], *, port: str
) -> Manifest:
    meta = metadata(resource, name)
    if space is not None:
        meta["labels"][SPACE_LABEL] = space
    http = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": port, "appProtocol": "http"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {**fields, "selector": pods, "ports": [http]},
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
