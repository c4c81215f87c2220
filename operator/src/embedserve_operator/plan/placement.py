"""Why pods find no node: from what the nodes offer, and from the scheduler's own words."""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.nodes import ClusterFacts, Demand, Match, match
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.placement import demand
from embedserve_operator.world import Failure, PodFacts

_MOST_NAMED = 5


def placement_failure(
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    cluster: ClusterFacts,
    pods: tuple[PodFacts, ...],
) -> Failure | None:
    """Why no node can take the pods; None when one can, when nodes are not known, or when all pods have theirs.

    It may heal: a node may come, by hand or by an autoscaler that makes nodes for waiting pods.
    """
    waiting = [pod for pod in pods if pod.failure is not None and pod.failure.unplaced]
    if cluster.nodes is None or (pods and not waiting):
        return None
    wanted = demand(spec, settings)
    found = match(wanted, cluster.nodes)
    if found.fitting:
        return None
    said = next((pod.failure.message for pod in waiting if pod.failure is not None), "")
    more = f". The scheduler says: {said}" if said else ""
    if found.too_few:
        words = (
            f"no node of class {spec.hardware.class_} has {wanted.count} {wanted.resource_name}; there are: "
            f"{_some(found.too_few)}"
        )
        return Failure("InsufficientAccelerators", words + more, heals=True, unplaced=True)
    words = f"no node fits class {spec.hardware.class_} ({wanted.words()}); {offers(found)}"
    return Failure("NoMatchingNode", words + more, heals=True, unplaced=True)


def offers(found: Match) -> str:
    """What the nodes that do not fit offer, in words."""
    parts = []
    if found.tainted:
        parts.append(f"these would, but for a taint or cordon: {_some(found.tainted)}")
    if found.others:
        parts.append(f"the cluster has {_some(found.others)}")
    return "; ".join(parts) or "the cluster has no nodes"


def _some(words: tuple[str, ...]) -> str:
    shown = ", ".join(words[:_MOST_NAMED])
    return shown if len(words) <= _MOST_NAMED else f"{shown} and {len(words) - _MOST_NAMED} more"


def matching_nodes(wanted: Demand, cluster: ClusterFacts) -> int | None:
    """How many nodes may take the pods; None where nodes are not known."""
    return None if cluster.nodes is None else len(match(wanted, cluster.nodes).fitting)
