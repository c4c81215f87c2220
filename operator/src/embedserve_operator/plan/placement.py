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
    requirements = build_node_requirements(spec, settings)
    matches = match_nodes(requirements, cluster.nodes)
    if matches.fitting:
        return None
    scheduler_message = next((pod.failure.message for pod in waiting if pod.failure is not None), "")
    scheduler_note = f". The scheduler says: {scheduler_message}" if scheduler_message else ""
    if matches.too_few:
        message = (
            f"no node of class {spec.hardware.class_} has {requirements.count} {requirements.resource_name}; there "
            f"are: {_join_some(matches.too_few)}"
        )
        return Failure(
            "InsufficientAccelerators", message + scheduler_note, is_transient=True, is_unscheduled=True
        )
    message = (
        f"no node fits class {spec.hardware.class_} ({requirements.describe()}); {describe_offers(matches)}"
    )
    if requirements.capabilities and not matches.tainted:
        message = (
            f"{message}. An autoscaler adds a node to a pool that has none if the pool's definition has "
            f"{describe_pool_labels(requirements, _MAX_VALUES)}"
        )
    return Failure("NoMatchingNode", message + scheduler_note, is_transient=True, is_unscheduled=True)


def describe_pool_labels(requirements: NodeRequirements, max_values: int = 0) -> str:
    """Describe the labels that the definition of a pool without nodes must have for an autoscaler to add the first one.

    Of the values of each label, at most `max_values` are named; with 0, only that there are labels of clouds.
    """
    major, _, minor = requirements.capabilities[0].partition(".")
    labels_to_add = f"{COMPUTE_MAJOR}={major} and {COMPUTE_MINOR}={minor}, which you can add to it"
    if not requirements.accelerator_labels:
        return labels_to_add
    if not max_values:
        return f"such a label, or {labels_to_add}"
    labels = [
        f"{key}={_join_values(values, max_values)}" for key, values in requirements.accelerator_labels.items()
    ]
    return f"one of the labels {'; '.join(labels)}; or {labels_to_add}"


def _join_values(values: tuple[str, ...], max_values: int) -> str:
    joined = " or ".join(values[:max_values])
    return joined if len(values) <= max_values else f"{joined} or {len(values) - max_values} others"


def describe_offers(matches: NodeMatches) -> str:
    """Describe what the nodes that do not fit offer."""
    parts = []
    if matches.tainted:
        parts.append(f"these fit except for a taint or cordon: {_join_some(matches.tainted)}")
    if matches.other_nodes:
        parts.append(f"the cluster has {_join_some(matches.other_nodes)}")
    return "; ".join(parts) or "the cluster has no nodes"


def _join_some(texts: tuple[str, ...]) -> str:
    joined = ", ".join(texts[:_MAX_NAMED])
    return joined if len(texts) <= _MAX_NAMED else f"{joined} and {len(texts) - _MAX_NAMED} more"


def count_matching_nodes(requirements: NodeRequirements, cluster: ClusterState) -> int | None:
    """Return how many nodes may take the pods; None where nodes are not known."""
    return None if cluster.nodes is None else len(match_nodes(requirements, cluster.nodes).fitting)
