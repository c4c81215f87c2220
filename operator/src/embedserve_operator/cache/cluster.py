"""Keeps what is known about the cluster as a whole: nodes, RuntimeClasses, optional kinds."""

from __future__ import annotations

from embedserve_operator.kube.kinds import NODE
from embedserve_operator.kube.objects import Received
from embedserve_operator.kube.views.cluster import Node
from embedserve_operator.kube.views.objects import Object
from embedserve_operator.observe.nodes import read_node
from embedserve_operator.state.nodes import ClusterState, NodeState


class ClusterCache:
    """The cache of what is known about the cluster as a whole.

    Its methods return whether anything changed: nodes report their health all the time, and none of that
    matters here.
    """

    def __init__(self, *, watches_nodes: bool) -> None:
        self._watches_nodes = watches_nodes
        self._nodes: dict[str, NodeState] = {}
        self._runtime_classes: set[str] = set()
        self._optional_kinds: frozenset[str] = frozenset()
        self._metrics_providers: tuple[str, ...] = ()

    def find_node(self, name: str) -> NodeState | None:
        """Return a node, if it is known."""
        return self._nodes.get(name)

    def put(self, kind: str, received: Received) -> bool:
        """Record that a node or RuntimeClass exists."""
        if kind == NODE:
            return self._put_node(Node.parse(received))
        name = Object.parse(received).metadata.name
        new = name not in self._runtime_classes
        self._runtime_classes.add(name)
        return new

    def _put_node(self, node: Node) -> bool:
        state = read_node(node)
        changed = self._nodes.get(state.name) != state
        self._nodes[state.name] = state
        return changed

    def drop(self, kind: str, received: Received) -> bool:
        """Record that a node or RuntimeClass is gone."""
        return self._forget(kind, Object.parse(received).metadata.name)

    def keep_only(self, kind: str, names: frozenset[str]) -> bool:
        """Forget everything that is not among the existing names."""
        cached = set(self._nodes) if kind == NODE else set(self._runtime_classes)
        missing = cached - names
        for name in missing:
            self._forget(kind, name)
        return bool(missing)

    def set_metrics_providers(self, providers: tuple[str, ...]) -> None:
        """Record who answers the custom metrics API besides our adapter."""
        self._metrics_providers = providers

    def set_optional_kinds(self, kinds: frozenset[str]) -> None:
        """Record which of the kinds that a cluster may lack can be made."""
        self._optional_kinds = kinds

    def get_state(self) -> ClusterState:
        """Return what is known as frozen values."""
        return ClusterState(
            nodes=tuple(self._nodes[name] for name in sorted(self._nodes)) if self._watches_nodes else None,
            runtime_classes=frozenset(self._runtime_classes),
            optional_kinds=self._optional_kinds,
            metrics_providers=self._metrics_providers,
        )

    def _forget(self, kind: str, name: str) -> bool:
        if kind == NODE:
            return self._nodes.pop(name, None) is not None
        was_known = name in self._runtime_classes
        self._runtime_classes.discard(name)
        return was_known
