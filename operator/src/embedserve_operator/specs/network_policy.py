"""The NetworkPolicy: clients reach the serving ports, monitoring the management port, and the pods reach only each
other and where their model comes from."""

from __future__ import annotations

from urllib.parse import urlsplit

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.containers import FETCH
from embedserve_operator.specs.metadata import SERVICE_LABEL, TASK_LABEL, fingerprinted, metadata
from embedserve_operator.specs.runtime_config import (
    GRPC_PORT,
    MANAGEMENT_PORT,
    PINNED_GRPC_PORT,
    PINNED_PORT,
    SERVING_PORT,
)
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Resource

_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_PORTS = {"https": 443, "http": 80}
_DNS: Manifest = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


def network_policy(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    *,
    fetches: bool,
    by_job: bool = False,
) -> Manifest | None:
    """The policy over the pods of the resource; `fetches` when some of them fetch over the network, `by_job` when the
    pods that do have a policy of their own."""
    selector: Manifest = {"matchLabels": {SERVICE_LABEL: resource.key.name}}
    if by_job:
        selector["matchExpressions"] = [{"key": TASK_LABEL, "operator": "NotIn", "values": [FETCH]}]
    egress = [*_passing_on(resource, spec), *(_fetching(spec, settings) if fetches else ())]
    ingress = _ingress(resource, spec, settings)
    return _policy(resource, spec, name=resource.key.name, selector=selector, ingress=ingress, egress=egress)


def fetch_policy(resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings) -> Manifest | None:
    """The policy over the pods of fetch Jobs: they reach where the model comes from, and are asked how far they are."""
    # A dot is in no resource's name, so this is no other resource's policy.
    name = f"{resource.key.name}.{FETCH}"
    selector = {"matchLabels": {SERVICE_LABEL: resource.key.name, TASK_LABEL: FETCH}}
    egress = [_DNS, *_fetching(spec, settings)] if spec.model.source.is_remote else []
    return _policy(resource, spec, name=name, selector=selector, ingress=_management(settings), egress=egress)


def _policy(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    *,
    name: str,
    selector: Manifest,
    ingress: list[Manifest],
    egress: list[Manifest],
) -> Manifest | None:
    wanted = spec.network_policy
    if wanted.mode == "Disabled":
        return None
    return fingerprinted(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(resource, name),
            "spec": {
                "podSelector": selector,
                "policyTypes": ["Ingress", "Egress"],
                "ingress": ingress,
                "egress": [*egress, *(wanted.egress or ())],
            },
        }
    )


def _ingress(resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings) -> list[Manifest]:
    # `from` is left out, not empty, where everybody may come: an empty list means the same, but reads like nobody.
    clients = list(spec.network_policy.clients or ())
    grpc = [] if spec.service.grpc_port is None else [_tcp(GRPC_PORT)]
    ports = [_tcp(SERVING_PORT), *grpc, *_pinned_ports(spec)]
    rules: list[Manifest] = [{"ports": ports, **({"from": [*clients, _own(resource)]} if clients else {})}]
    return [*rules, *_management(settings)]


def _management(settings: RenderSettings) -> list[Manifest]:
    """The operator, and who watches."""
    watchers = [
        {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: name}}}
        for name in settings.management_clients
    ]
    return [{"ports": [_tcp(MANAGEMENT_PORT)], "from": watchers}] if watchers else []


def _own(resource: Resource) -> Manifest:
    return {"podSelector": {"matchLabels": {SERVICE_LABEL: resource.key.name}}}


def _passing_on(resource: Resource, spec: EmbeddingServiceSpec) -> list[Manifest]:
    """DNS, and pods of another vector space, where requests by the name of that one are passed on to."""
    return [_DNS, {"ports": _pinned_ports(spec), "to": [_own(resource)]}]


def _pinned_ports(spec: EmbeddingServiceSpec) -> list[Manifest]:
    grpc = [] if spec.service.grpc_port is None else [_tcp(PINNED_GRPC_PORT)]
    return [_tcp(PINNED_PORT), *grpc]


def _fetching(spec: EmbeddingServiceSpec, settings: RenderSettings) -> list[Manifest]:
    """The port of where the model comes from: a policy knows addresses and ports, no names."""
    source = spec.model.source
    if source.http is not None:
        url: str | None = source.http.url
    elif source.s3 is not None:
        url = source.s3.endpoint
    else:
        given = source.hugging_face.endpoint if source.hugging_face is not None else None
        url = given or settings.hf_endpoint
    if url is None:
        return [{"ports": [_tcp(_PORTS["https"])]}]
    found = urlsplit(url)
    return [{"ports": [_tcp(found.port or _PORTS[found.scheme])]}]


def _tcp(port: int) -> Manifest:
    return {"port": port, "protocol": "TCP"}
