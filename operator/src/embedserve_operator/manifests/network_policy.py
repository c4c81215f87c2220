"""Builds the NetworkPolicy: clients reach the serving ports, monitoring reaches the management
port, and the pods reach only each other and the source of their model.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.containers import FETCH
from embedserve_operator.manifests.metadata import SERVICE_LABEL, TASK_LABEL, add_fingerprint, build_metadata
from embedserve_operator.manifests.runtime_config import (
    GRPC_PORT,
    MANAGEMENT_PORT,
    PINNED_GRPC_PORT,
    PINNED_PORT,
    SERVING_PORT,
)
from embedserve_operator.manifests.source_address import find_source_namespace, find_source_port
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.resource import Resource

_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_DNS: Manifest = {
    # A policy names the port of the pods, not that of their Service, which on OpenShift is 5353.
    "ports": [{"port": port, "protocol": protocol} for port in (53, 5353) for protocol in ("UDP", "TCP")]
}


def build_network_policy(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    *,
    fetches: bool,
    by_job: bool = False,
) -> Manifest | None:
    """Return the policy over the pods of the resource.

    `fetches` says that some of them fetch over the network, `by_job` that the pods that do have a policy of
    their own.
    """
    selector: Manifest = {"matchLabels": {SERVICE_LABEL: resource.key.name}}
    if by_job:
        selector["matchExpressions"] = [{"key": TASK_LABEL, "operator": "NotIn", "values": [FETCH]}]
    egress = [
        *_build_forwarding_egress(resource, spec),
        *(_build_fetch_egress(resource, spec, settings) if fetches else ()),
    ]
    rules = _PolicyRules(selector, _build_ingress(resource, spec, settings), egress)
    return _build_policy(resource, spec, resource.key.name, rules)


def build_fetch_policy(
    resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings
) -> Manifest | None:
    """Return the policy over the pods of fetch Jobs: they reach the source of the model, and are asked for
    their progress.
    """
    # Names of resources contain no dot, so no other resource has a policy of this name.
    name = f"{resource.key.name}.{FETCH}"
    selector: Manifest = {"matchLabels": {SERVICE_LABEL: resource.key.name, TASK_LABEL: FETCH}}
    is_remote = spec.model.source.is_remote
    egress = [_DNS, *_build_fetch_egress(resource, spec, settings)] if is_remote else []
    rules = _PolicyRules(selector, _build_management_ingress(settings), egress)
    return _build_policy(resource, spec, name, rules)


@dataclass(frozen=True, slots=True)
class _PolicyRules:
    """The pods of a policy, the peers that may reach them, and those that they may reach."""

    selector: Manifest
    ingress: list[Manifest]
    egress: list[Manifest]


def _build_policy(
    resource: Resource, spec: EmbeddingServiceSpec, name: str, rules: _PolicyRules
) -> Manifest | None:
    settings = spec.network_policy
    if settings.mode == "Disabled":
        return None
    return add_fingerprint(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": build_metadata(resource, name),
            "spec": {
                "podSelector": rules.selector,
                "policyTypes": ["Ingress", "Egress"],
                "ingress": rules.ingress,
                "egress": [*rules.egress, *(rule.as_wire() for rule in settings.egress or ())],
            },
        }
    )


def _build_ingress(
    resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings
) -> list[Manifest]:
    # `from` is left out where everybody is admitted: an empty list means the same, but reads like nobody.
    clients = [peer.as_wire() for peer in spec.network_policy.clients or ()]
    grpc = [] if spec.service.grpc_port is None else [_build_tcp_port(GRPC_PORT)]
    ports = [_build_tcp_port(SERVING_PORT), *grpc, *_list_pinned_ports(spec)]
    rules: list[Manifest] = [
        {"ports": ports, **({"from": [*clients, _select_own_pods(resource)]} if clients else {})}
    ]
    return [*rules, *_build_management_ingress(settings)]


def _build_management_ingress(settings: RenderSettings) -> list[Manifest]:
    """Return the rule that admits the operator and the monitoring."""
    watchers = [
        {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: name}}}
        for name in settings.management_clients
    ]
    return [{"ports": [_build_tcp_port(MANAGEMENT_PORT)], "from": watchers}] if watchers else []


def _select_own_pods(resource: Resource) -> Manifest:
    return {"podSelector": {"matchLabels": {SERVICE_LABEL: resource.key.name}}}


def _build_forwarding_egress(resource: Resource, spec: EmbeddingServiceSpec) -> list[Manifest]:
    """Return the rules for DNS, and for the pods of another vector space, to which requests by the name of
    that space are passed on.
    """
    return [_DNS, {"ports": _list_pinned_ports(spec), "to": [_select_own_pods(resource)]}]


def _list_pinned_ports(spec: EmbeddingServiceSpec) -> list[Manifest]:
    grpc = [] if spec.service.grpc_port is None else [_build_tcp_port(PINNED_GRPC_PORT)]
    return [_build_tcp_port(PINNED_PORT), *grpc]


def _build_fetch_egress(
    resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings
) -> list[Manifest]:
    """Return the rules for the source of the model: for its port, since a policy knows addresses and ports but no
    names; and for all ports of the namespace of a Service, behind which pods listen on ports of their own.
    """
    rules: list[Manifest] = [{"ports": [_build_tcp_port(find_source_port(spec, settings))]}]
    namespace = find_source_namespace(spec, settings, resource.key.namespace)
    if namespace is not None:
        rules.append({"to": [{"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: namespace}}}]})
    return rules


def _build_tcp_port(port: int) -> Manifest:
    return {"port": port, "protocol": "TCP"}
