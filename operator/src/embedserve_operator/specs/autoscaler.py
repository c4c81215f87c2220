"""The HorizontalPodAutoscaler of one revision's Deployment."""

from __future__ import annotations

from embedserve_operator.api.types import Autoscaling, EmbeddingServiceSpec
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
TARGETS = {"queueDepth": "64", "queueSeconds": "1", "inFlight": "16"}
"""Values that a pod should have by default; from the simulation in benchmarks/scaling.py."""
BEHAVIOR: Manifest = {
    # At once, and by more than doubling: a burst of thousands of texts is there within a second.
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [
            {"type": "Percent", "value": 200, "periodSeconds": 15},
            {"type": "Pods", "value": 4, "periodSeconds": 15},
        ],
    },
    # Slowly: a pod that was stopped too early has to load its model again.
    "scaleDown": {
        "stabilizationWindowSeconds": 300,
        "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": 10, "periodSeconds": 60}],
    },
}


def target_of(wanted: Autoscaling) -> str:
    """The value that a pod should have, as a quantity."""
    return TARGETS[wanted.metric] if wanted.target is None else str(wanted.target)


def behavior_of(wanted: Autoscaling) -> Manifest:
    """Speed of scaling: the user's, and ours in what it leaves out."""
    return {**BEHAVIOR, **(wanted.behavior or {})}


def autoscaler(resource: Resource, spec: EmbeddingServiceSpec, revision: str) -> Manifest | None:
    """The autoscaler; None when the number of pods is fixed."""
    wanted = spec.autoscaling
    if wanted is None or spec.suspend:
        return None
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": METRICS[wanted.metric]},
            "target": {"type": "AverageValue", "averageValue": target_of(wanted)},
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
                # Ours first: the status tells its value.
                "metrics": [metric, *(wanted.metrics or ())],
                "behavior": behavior_of(wanted),
            },
        }
    )
