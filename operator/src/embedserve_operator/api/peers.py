"""Label selectors, and who may reach the pods or be reached by them, as Kubernetes' NetworkPolicy has them.

The forms of keys and values are left to the API server, which checks them in the child: rules over strings in lists of
lists would cost more than it grants to a definition. For the same reason lists inside of lists are short.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from embedserve_operator.api.base import Model
from embedserve_operator.api.rules import Rule, matches

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4_RANGE = f"{_OCTET}([.]{_OCTET}){{3}}/(3[0-2]|[12]?[0-9])"
_IPV6_RANGE = "[0-9a-fA-F]{0,4}:[0-9a-fA-F:.]{1,40}/(12[0-8]|1[01][0-9]|[1-9]?[0-9])"

AddressRange = Annotated[
    str,
    Field(max_length=64),
    matches(
        f"^({_IPV4_RANGE}|{_IPV6_RANGE})$", "must be a range of addresses such as 10.0.0.0/8 or 2001:db8::/32"
    ),
]


_Value = Annotated[str, Field(max_length=63)]


class LabelRequirement(Model):
    """Requirement on one label of an object."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            message="In and NotIn need values, Exists and DoesNotExist take none",
            check=lambda requirement: (requirement.operator in ("In", "NotIn")) == bool(requirement.values),
        ),
    )

    key: Annotated[str, Field(max_length=317)]
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """Comparison of the label's value with `values`."""
    values: Annotated[tuple[_Value, ...], Field(max_length=32)] | None = None
    """Values of the label; none for Exists and DoesNotExist."""


class LabelSelector(Model):
    """Labels that an object must have; without any, every object is selected."""

    match_labels: Annotated[dict[str, _Value], Field(max_length=16)] | None = None
    """Labels with their values."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=16)] | None = None
    """Further requirements."""


class AddressBlock(Model):
    """A range of addresses."""

    cidr: AddressRange
    """Range of addresses, such as 10.0.0.0/8."""
    except_: Annotated[
        Annotated[tuple[AddressRange, ...], Field(max_length=8)] | None, Field(alias="except")
    ] = None
    """Ranges inside it that are left out."""


class NetworkPeer(Model):
    """Other end of a connection: pods of a namespace, or a range of addresses."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            message="a peer is an ipBlock, or a podSelector and a namespaceSelector, or one of these two",
            check=lambda peer: (
                (peer.ip_block is not None)
                != (peer.pod_selector is not None or peer.namespace_selector is not None)
            ),
        ),
    )

    pod_selector: LabelSelector | None = None
    """Pods, of the resource's own namespace unless namespaceSelector says otherwise."""
    namespace_selector: LabelSelector | None = None
    """Labels of the namespaces."""
    ip_block: AddressBlock | None = None
    """Addresses outside the cluster."""


_PORT_NAME = "^([a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?)$"


def _is_port(value: int | str) -> bool:
    return 1 <= value <= 65535 if isinstance(value, int) else re.search(_PORT_NAME, value) is not None


Port = Annotated[
    int | Annotated[str, Field(max_length=15)],
    Rule(
        cel=f"type(self) == int ? self >= 1 && self <= 65535 : self.matches('{_PORT_NAME}')",
        message="must be a port from 1 to 65535, or the name of a port of the pods",
        check=_is_port,
    ),
]


class NetworkPort(Model):
    """Ports of the other end."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.endPort) || (has(self.port) && type(self.port) == int && self.endPort >= self.port)",
            message="endPort needs a port in digits that is not above it",
            check=lambda port_rule: (
                port_rule.end_port is None
                or (isinstance(port_rule.port, int) and port_rule.end_port >= port_rule.port)
            ),
        ),
    )

    port: Port | None = None
    """Port that pods listen on, behind any Service; without it all ports."""
    protocol: Literal["TCP", "UDP", "SCTP"] | None = None
    """Protocol; without it TCP."""
    end_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Last port of a range that begins with port."""


class EgressRule(Model):
    """Destinations that the pods may reach: each of `ports` at each of `to`."""

    ports: Annotated[tuple[NetworkPort, ...], Field(max_length=32)] | None = None
    """Ports; without them all."""
    to: Annotated[tuple[NetworkPeer, ...], Field(max_length=16)] | None = None
    """Peers; without them everybody."""
