"""Builds the PodDisruptionBudget, where there may be two pods: a drain takes one serving pod at a
time.

It bounds how many pods may be missing, not how many must be there: so it follows the number that the
autoscaler sets, and lets the last pod go as well.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.deployment import find_fixed_replicas
from embedserve_operator.manifests.metadata import add_fingerprint, build_metadata, build_selector
from embedserve_operator.manifests.volume import ModelVolume
from embedserve_operator.state.resource import Resource


def build_disruption_budget(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    name: str,
    revision: str,
    volume: ModelVolume | None = None,
) -> Manifest | None:
    """Return the budget over the pods of one revision; None when it is not wanted. Pods of another revision
    that is just starting must not count as missing.

    Pods that one volume holds on one node get none: an evicted pod could start again only where the others
    still are, and a drain that waits for it would never end.
    """
    if volume is not None and (volume.is_single_node or volume.is_single_pod):
        return None
    fixed = find_fixed_replicas(spec)
    scaled = spec.autoscaling.max_replicas if spec.autoscaling is not None else 0
    if (scaled if fixed is None else fixed) < 2:
        return None
    return add_fingerprint(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": build_metadata(resource, name),
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": build_selector(resource, revision)},
                # A pod that does not serve must not keep a node from being drained.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        }
    )
