"""The PodDisruptionBudget: a drain takes one pod of what is served at a time. Only where there may be two pods.

It bounds how many may be missing, not how many must be there: so it follows the autoscaler's number by itself, and lets
the last pod go as well.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.specs.deployment import fixed_replicas
from embedserve_operator.specs.metadata import fingerprinted, metadata, selector
from embedserve_operator.specs.volume import ModelVolume
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Resource


def disruption_budget(
    resource: Resource,
    spec: EmbeddingServiceSpec,
    name: str,
    revision: str,
    volume: ModelVolume | None = None,
) -> Manifest | None:
    """The budget over the pods of one revision; None when it is not wanted. Pods of another one that is just
    coming up must not count as missing.

    Pods that one volume holds on one node have none: a pod that was evicted could come up again only where the others
    still are, and a drain that waits for it would never end.
    """
    if volume is not None and (volume.one_node or volume.one_pod):
        return None
    fixed = fixed_replicas(spec)
    scaled = spec.autoscaling.max_replicas if spec.autoscaling is not None else 0
    if (scaled if fixed is None else fixed) < 2:
        return None
    return fingerprinted(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(resource, name),
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": selector(resource, revision)},
                # A pod that does not serve must not keep a node from being drained.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        }
    )
