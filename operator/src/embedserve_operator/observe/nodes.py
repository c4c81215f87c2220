"""Reads nodes."""

from __future__ import annotations

from embedserve_operator.kube.views.cluster import Node
from embedserve_operator.state.nodes import NodeState, Taint


def read_node(node: Node) -> NodeState:
    """Return the state of a node."""
    return NodeState(
        name=node.metadata.name,
        labels=node.metadata.labels,
        taints=tuple(Taint(taint.key, taint.value, taint.effect) for taint in node.spec.taints),
        is_unschedulable=node.spec.unschedulable,
        # The names of extended resources contain a domain, and their values are whole numbers.
        allocatable={
            name: int(value)
            for name, value in node.status.allocatable.items()
            if "/" in name and value.isdigit()
        },
    )
