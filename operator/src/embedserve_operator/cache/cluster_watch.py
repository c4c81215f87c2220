"""Takes in events about nodes and RuntimeClasses."""

from __future__ import annotations

from embedserve_operator.cache.cluster import ClusterCache
from embedserve_operator.cache.placement import PlacementIndex
from embedserve_operator.kube.kinds import NODE
from embedserve_operator.kube.objects import Received
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.kube.views.objects import Object


class ClusterWatch:
    """Feeds the cache of the cluster, and says which resources an event concerns."""

    def __init__(self, cluster: ClusterCache, placements: PlacementIndex) -> None:
        self._cluster = cluster
        self._placements = placements

    def handle_event(self, kind: str, received: Received, *, is_gone: bool) -> list[ObjectKey]:
        """Take in an event; return the resources that it concerns."""
        name = Object.parse(received).metadata.name
        before = self._cluster.find_node(name)
        change = self._cluster.drop if is_gone else self._cluster.put
        if not change(kind, received):
            return []
        if kind == NODE:
            return self._placements.find_concerned_by_node(before, self._cluster.find_node(name))
        return self._placements.find_concerned_by_runtime_class(name)
