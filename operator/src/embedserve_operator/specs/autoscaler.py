"""The HorizontalPodAutoscaler of one revision's Deployment."""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.specs.deployment import deployment_name
from embedserve_operator.specs.metadata import fingerprinted, metadata
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Resource

METRICS = {
    "queueDepth": "embedserve_queue_depth",
    "queueSeconds": "embedserve_queue_seconds",
    "inFlight": "embedserve_requests_in_flight",
}
"""Gauges of the runtime by what `spec.autoscaling.metric` calls them."""


def autoscaler(resource: Resource, spec: EmbeddingServiceSpec, revision: str) -> Manifest | None:
    """The autoscaler; None when the number of pods is fixed."""
    wanted = spec.autoscaling
    if wanted is None or spec.suspend:
        return None
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": METRICS[wanted.metric]},
            "target": {"type": "AverageValue", "averageValue": str(wanted.target)},
        },
    }
    return fingerprinted(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": metadata(resource, deployment_name(resource, revision), revision),
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "name": deployment_name(resource, revision),
                },
                "minReplicas": wanted.min_replicas,
                "maxReplicas": wanted.max_replicas,
                "metrics": [metric],
                **({"behavior": wanted.behavior} if wanted.behavior else {}),
            },
        }
    )
