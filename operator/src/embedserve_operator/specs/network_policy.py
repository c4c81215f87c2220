"""The NetworkPolicy: clients reach the serving ports, monitoring the management port, and the pods reach only each
other and where their model comes from."""

from __future__ import annotations

from urllib.parse import urlsplit

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.metadata import SERVICE_LABEL, fingerprinted, metadata
from embedserve_operator.specs.runtime_config import MANAGEMENT_PORT, PINNED_PORT, SERVING_PORT
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Resource

_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_PORTS = {"https": 443, "http": 80}
_DNS: Manifest = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


def network_policy(
    resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings, *, fetches: bool
) -> Manifest | None:
    """The policy over all pods of the resource; `fetches` when some of them fetch over the network."""
    wanted = spec.network_policy
    if wanted.mode == "Disabled":
        return None
    return fingerprinted(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(resource, resource.key.name),
            "spec": {
                "podSelector": {"matchLabels": {SERVICE_LABEL: resource.key.name}},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": _ingress(resource, spec, settings),
                "egress": [
                    *_passing_on(resource),
                    *(_fetching(settings) if fetches else ()),
                    *(wanted.egress or ()),
                ],
            },
        }
    )


def fetches_over_network(spec: EmbeddingServiceSpec) -> bool:
    """Whether the pods need the network to get their model."""
    return spec.model.source.hugging_face is not None


def _ingress(resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings) -> list[Manifest]:
    # `from` is left out, not empty, where everybody may come: an empty list means the same, but reads like nobody.
    clients = list(spec.network_policy.clients or ())
    ports = [_tcp(SERVING_PORT), _tcp(PINNED_PORT)]
    rules: list[Manifest] = [{"ports": ports, **({"from": [*clients, _own(resource)]} if clients else {})}]
    watchers = [
        {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: name}}}
        for name in settings.management_clients
    ]
    if watchers:
        rules.append({"ports": [_tcp(MANAGEMENT_PORT)], "from": watchers})
    return rules


def _own(resource: Resource) -> Manifest:
    return {"podSelector": {"matchLabels": {SERVICE_LABEL: resource.key.name}}}


def _passing_on(resource: Resource) -> list[Manifest]:
    """DNS, and pods of another vector space, where requests by the name of that one are passed on to."""
    return [_DNS, {"ports": [_tcp(PINNED_PORT)], "to": [_own(resource)]}]


def _fetching(settings: RenderSettings) -> list[Manifest]:
    """The Hub's port: a policy knows addresses and ports, no names."""
    if settings.hf_endpoint is None:
        return [{"ports": [_tcp(443)]}]
    endpoint = urlsplit(settings.hf_endpoint)
    return [{"ports": [_tcp(endpoint.port or _PORTS.get(endpoint.scheme, 443))]}]


def _tcp(port: int) -> Manifest:
    return {"port": port, "protocol": "TCP"}
