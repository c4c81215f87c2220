"""The PodDisruptionBudget: a drain takes one pod at a time. Only where there may be two pods.

It bounds how many may be missing, not how many must be there: so it follows the autoscaler's number by itself, and lets
the last pod go as well.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.specs.deployment import fixed_replicas
from embedserve_operator.specs.metadata import SERVICE_LABEL, fingerprinted, metadata
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Resource


def disruption_budget(resource: Resource, spec: EmbeddingServiceSpec) -> Manifest | None:
    """The budget over all pods of the resource, whichever revision they are of; None when it is not wanted."""
    fixed = fixed_replicas(spec)
    scaled = spec.autoscaling.max_replicas if spec.autoscaling is not None else 0
    if (scaled if fixed is None else fixed) < 2:
        return None
    return fingerprinted(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(resource, resource.key.name),
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": {SERVICE_LABEL: resource.key.name}},
                # A pod that does not serve must not keep a node from being drained.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        }
    )
