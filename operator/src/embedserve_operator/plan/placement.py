"""Says why pods find no node, from what the nodes offer and from the scheduler's own message."""

from __future__ import annotations

from embedserve_operator.api.hardware import COMPUTE_MAJOR, COMPUTE_MINOR
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.placement import build_node_requirements
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.nodes import ClusterState, NodeMatches, NodeRequirements, match_nodes
from embedserve_operator.state.pods import PodState

_MAX_NAMED = 5
_MAX_VALUES = 3


def find_placement_failure(
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    cluster: ClusterState,
    pods: tuple[PodState, ...],
) -> Failure | None:
    """Return why no node can take the pods; None when one can, when nodes are not known, or when all pods have
    a node.

    The failure is transient: a node may be added, by hand or by an autoscaler that adds nodes for waiting
    pods.
    """
    waiting = [pod for pod in pods if pod.failure is not None and pod.failure.is_unscheduled]
    if cluster.nodes is None or (pods and not waiting):
        return None
    wanted = build_node_requirements(spec, settings)
    found = match_nodes(wanted, cluster.nodes)
    if found.fitting:
        return None
    said = next((pod.failure.message for pod in waiting if pod.failure is not None), "")
    more = f". The scheduler says: {said}" if said else ""
    if found.too_few:
        message = (
            f"no node of class {spec.hardware.class_} has {wanted.count} {wanted.resource_name}; there are: "
            f"{_join_some(found.too_few)}"
        )
        return Failure("InsufficientAccelerators", message + more, is_transient=True, is_unscheduled=True)
    message = f"no node fits class {spec.hardware.class_} ({wanted.describe()}); {describe_offers(found)}"
    if wanted.capabilities and not found.tainted:
        message = (
            f"{message}. An autoscaler adds a node to a pool that has none if the pool's definition has "
            f"{describe_pool_labels(wanted, _MAX_VALUES)}"
        )
    return Failure("NoMatchingNode", message + more, is_transient=True, is_unscheduled=True)


def describe_pool_labels(wanted: NodeRequirements, max_values: int = 0) -> str:
    """Describe the labels that the definition of a pool without nodes must have for an autoscaler to add the first one.

    Of the values of each label, so many are named; with 0, only that there are labels of clouds.
    """
    major, _, minor = wanted.capabilities[0].partition(".")
    own = f"{COMPUTE_MAJOR}={major} and {COMPUTE_MINOR}={minor}, which you can add to it"
    if not wanted.accelerator_labels:
        return own
    if not max_values:
        return f"such a label, or {own}"
    labels = [
        f"{key}={_join_values(values, max_values)}" for key, values in wanted.accelerator_labels.items()
    ]
    return f"one of the labels {'; '.join(labels)}; or {own}"


def _join_values(values: tuple[str, ...], max_values: int) -> str:
    shown = " or ".join(values[:max_values])
    return shown if len(values) <= max_values else f"{shown} or {len(values) - max_values} others"


def describe_offers(found: NodeMatches) -> str:
    """Describe what the nodes that do not fit offer."""
    parts = []
    if found.tainted:
        parts.append(f"these fit except for a taint or cordon: {_join_some(found.tainted)}")
    if found.others:
        parts.append(f"the cluster has {_join_some(found.others)}")
    return "; ".join(parts) or "the cluster has no nodes"


def _join_some(texts: tuple[str, ...]) -> str:
    shown = ", ".join(texts[:_MAX_NAMED])
    return shown if len(texts) <= _MAX_NAMED else f"{shown} and {len(texts) - _MAX_NAMED} more"


def count_matching_nodes(wanted: NodeRequirements, cluster: ClusterState) -> int | None:
    """Return how many nodes may take the pods; None where nodes are not known."""
    return None if cluster.nodes is None else len(match_nodes(wanted, cluster.nodes).fitting)
