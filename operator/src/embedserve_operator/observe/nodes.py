"""This module reads nodes."""

from __future__ import annotations

from embedserve_operator.kube.objects import Received, dig, mappings, text
from embedserve_operator.state.nodes import NodeState, Taint


def read_node(received: Received) -> NodeState:
    """Return the state of a node."""
    allocatable = dig(received, "status", "allocatable") or {}
    return NodeState(
        name=text(received, "metadata", "name"),
        labels={k: v for k, v in (dig(received, "metadata", "labels") or {}).items() if isinstance(v, str)},
        taints=tuple(
            Taint(text(taint, "key"), text(taint, "value"), text(taint, "effect"))
            for taint in mappings(received, "spec", "taints")
        ),
        is_unschedulable=dig(received, "spec", "unschedulable") is True,
        # The names of extended resources contain a domain, and their values are whole numbers.
        allocatable={
            name: int(value)
            for name, value in allocatable.items()
            if "/" in name and isinstance(value, str) and value.isdigit()
        },
    )
