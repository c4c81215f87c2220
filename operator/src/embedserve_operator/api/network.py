"""`spec.service`, `spec.api`, `spec.networkPolicy`, `spec.monitoring`: how a service is reached and watched."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from embedserve_operator.api.base import QUALIFIED_KEYS, LabelValue, Model
from embedserve_operator.api.peers import AddressRange, EgressRule, NetworkPeer
from embedserve_operator.api.rules import ListSet, Rule, between, matches, no_key

_OWN_ANNOTATION = no_key(
    "^embedserve[.]dev/", "annotations of embedserve.dev/ are the operator's: choose another key"
)
IpFamily = Literal["IPv4", "IPv6"]


def _balancer_only(field: str) -> str:
    return f"{field} needs type: LoadBalancer; set the type or remove the field"


class ServiceSettings(Model):
    """The Service that clients call."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.loadBalancerClass) || self.type == 'LoadBalancer'",
            message=_balancer_only("loadBalancerClass"),
            check=lambda s: s.load_balancer_class is None or s.type == "LoadBalancer",
        ),
        Rule(
            cel="!has(self.loadBalancerSourceRanges) || self.type == 'LoadBalancer'",
            message=_balancer_only("loadBalancerSourceRanges"),
            check=lambda s: s.load_balancer_source_ranges is None or s.type == "LoadBalancer",
        ),
        Rule(
            cel="!has(self.externalTrafficPolicy) || self.type != 'ClusterIP'",
            message="externalTrafficPolicy needs type: LoadBalancer or NodePort; set the type or remove the field",
            check=lambda s: s.external_traffic_policy is None or s.type != "ClusterIP",
        ),
        Rule(
            cel=(
                "!has(self.ipFamilies) || size(self.ipFamilies) < 2 || "
                "(has(self.ipFamilyPolicy) && self.ipFamilyPolicy != 'SingleStack')"
            ),
            message="two ipFamilies need ipFamilyPolicy: PreferDualStack or RequireDualStack",
            check=lambda s: (
                len(s.ip_families or ()) < 2 or s.ip_family_policy in ("PreferDualStack", "RequireDualStack")
            ),
        ),
    )

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """The type of the Service."""
    annotations: (
        Annotated[
            dict[str, Annotated[str, Field(max_length=4096)]],
            Field(max_length=32),
            QUALIFIED_KEYS,
            _OWN_ANNOTATION,
        ]
        | None
    ) = None
    """Annotations of the Service, for example for a cloud's load balancer."""
    ip_family_policy: Literal["SingleStack", "PreferDualStack", "RequireDualStack"] | None = None
    """The ipFamilyPolicy of the Service."""
    ip_families: (
        Annotated[
            tuple[IpFamily, ...],
            Field(min_length=1, max_length=2),
            ListSet(),
        ]
        | None
    ) = None
    """The ipFamilies of the Service, the main one first."""
    load_balancer_class: Annotated[str, Field(max_length=253)] | None = None
    """Class of the load balancer that implements the Service."""
    load_balancer_source_ranges: Annotated[tuple[AddressRange, ...], Field(max_length=64)] | None = None
    """Address ranges (CIDR) that may reach the load balancer."""
    external_traffic_policy: Literal["Cluster", "Local"] | None = None
    """Local keeps the client's address."""
    grpc_port: (
        Annotated[
            int,
            Rule(
                cel="self >= 1 && self <= 65535 && self != 80",
                message="must be between 1 and 65535 and not 80, which is HTTP's; leave it out for no gRPC",
                check=lambda port: 1 <= port <= 65535 and port != 80,
            ),
        ]
        | None
    ) = None
    """Port for gRPC, beside HTTP on port 80; without it there is no gRPC."""


Origin = Annotated[
    str,
    Field(max_length=300),
    matches(
        r"^(\*|https?://[^/*\s]+)$", "must be an origin such as https://app.example, or * for all of them"
    ),
]


class ClientSettings(Model):
    """Identification of clients, beside the names of their API keys, and the rates of each."""

    header: (
        Annotated[
            str,
            matches(
                r"^[A-Za-z0-9-]{1,100}$", "must be the name of an HTTP header such as X-Consumer-Username"
            ),
            Rule(
                cel="!self.matches('(?i)^(authorization|proxy-authorization|cookie)$')",
                message="must not be a header that carries secrets: its values are shown in logs and metrics",
                check=lambda name: name.lower() not in ("authorization", "proxy-authorization", "cookie"),
            ),
        ]
        | None
    ) = None
    """Header in which a gateway names the client. Only for a service that is reached through that gateway alone."""
    requests_per_minute: Annotated[int, between(1, 1_000_000_000, "leave it out for no limit")] | None = None
    """Requests a minute that each client may send to a pod; beyond it 429."""
    tokens_per_minute: Annotated[int, between(1, 1_000_000_000_000, "leave it out for no limit")] | None = (
        None
    )
    """Tokens a minute that each client may send to a pod; beyond it 429."""


class ApiSettings(Model):
    """Settings of the HTTP and gRPC API of the pods."""

    cors_origins: Annotated[tuple[Origin, ...], Field(max_length=64)] | None = None
    """Origins whose pages may call the service from a browser, such as https://app.example, or *; without it none
    may."""
    compress_from_bytes: (
        Annotated[int, between(1, 1_000_000_000, "leave it out to compress no answer")] | None
    ) = None
    """Answers of so many bytes and more are compressed with gzip for clients that accept it; without it none is."""
    openai_token_ids: bool = False
    """Takes arrays of token ids on /v1/embeddings. Clients send those of OpenAI's own tokenizers there, which are
    other words in this model's vocabulary; other routes take ids in any case."""
    clients: ClientSettings | None = None
    """Identification of clients and the rates of each; keys with names in the Secret of `auth` may have rates of
    their own."""


class NetworkPolicySettings(Model):
    """Peers that may reach the pods, and destinations that the pods may reach."""

    mode: Literal["Managed", "Disabled"] = "Managed"
    """Disabled makes no NetworkPolicy."""
    clients: Annotated[tuple[NetworkPeer, ...], Field(max_length=32)] | None = None
    """Peers that may reach the serving port, as in `kubectl explain networkpolicy.spec.ingress.from`.
    Without it everybody may."""
    egress: Annotated[tuple[EgressRule, ...], Field(max_length=32)] | None = None
    """Further rules of what the pods may reach, as in `kubectl explain networkpolicy.spec.egress`: a proxy,
    for example. DNS and the model's source are allowed where they are needed."""


class ServiceMonitorSettings(Model):
    """A ServiceMonitor of the Prometheus operator."""

    interval: (
        Annotated[
            str,
            Field(max_length=20),
            matches(r"^([0-9]+(ms|s|m|h))+$", "must be a duration such as 30s or 1m"),
        ]
        | None
    ) = None
    """Interval at which metrics are read; without it Prometheus' own default."""
    labels: Annotated[dict[str, LabelValue], Field(max_length=16), QUALIFIED_KEYS] | None = None
    """Labels of the ServiceMonitor, by which a Prometheus chooses it."""


class Monitoring(Model):
    """Collection of metrics."""

    service_monitor: ServiceMonitorSettings | None = None
    """Asks for a ServiceMonitor; made where its definition is installed. `{}` takes every default."""
