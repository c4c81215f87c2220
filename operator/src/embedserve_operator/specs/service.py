"""The Service that clients use: always of the resource's name, always on one revision's pods."""

from __future__ import annotations

from embedserve_operator.api.network import ServiceSettings
from embedserve_operator.specs.metadata import fingerprinted, metadata, selector
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Resource


def service(resource: Resource, settings: ServiceSettings, revision: str) -> Manifest:
    """The Service, steering to the pods of a revision."""
    meta = metadata(resource, resource.key.name)
    fields = settings.as_wire()
    annotations = fields.pop("annotations", None)
    grpc = fields.pop("grpcPort", None)
    if annotations:
        meta["annotations"] = annotations
    return fingerprinted(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {
                **fields,
                "selector": selector(resource, revision),
                "ports": [
                    {
                        "name": "http",
                        "port": 80,
                        "protocol": "TCP",
                        "targetPort": "http",
                        "appProtocol": "http",
                    },
                    *([] if grpc is None else [_grpc(grpc)]),
                ],
            },
        }
    )


def _grpc(port: int) -> Manifest:
    return {
        "name": "grpc",
        "port": port,
        "protocol": "TCP",
        "targetPort": "grpc",
        "appProtocol": "kubernetes.io/h2c",
    }


def url(resource: Resource) -> str:
    """Base URL inside the cluster."""
    return f"http://{resource.key.name}.{resource.key.namespace}.svc"


def grpc_address(resource: Resource, settings: ServiceSettings) -> str | None:
    """Host and port for gRPC inside the cluster; None without it."""
    if settings.grpc_port is None:
        return None
    return f"{resource.key.name}.{resource.key.namespace}.svc:{settings.grpc_port}"
