"""Builds the HorizontalPodAutoscaler of one revision's Deployment."""

from __future__ import annotations

from embedserve_operator.api.types import Autoscaling, EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.deployment import build_deployment_name
from embedserve_operator.manifests.metadata import add_fingerprint, build_metadata
from embedserve_operator.state.resource import Resource

METRICS = {
    "queueDepth": "embedserve_queue_depth",
    "queueSeconds": "embedserve_queue_seconds",
    "inFlight": "embedserve_requests_in_flight",
}
"""The gauges of the runtime by their names in `spec.autoscaling.metric`."""
TARGETS = {"queueDepth": "64", "queueSeconds": "1", "inFlight": "16"}
"""The default values per pod; they come from the simulation in benchmarks/scaling.py."""
BEHAVIOR: Manifest = {
    # Scale up at once, and by more than double: a burst of thousands of texts arrives within a second.
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [
            {"type": "Percent", "value": 200, "periodSeconds": 15},
            {"type": "Pods", "value": 4, "periodSeconds": 15},
        ],
    },
    # Scale down slowly: a pod that was stopped too early has to load its model again.
    "scaleDown": {
        "stabilizationWindowSeconds": 300,
        "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": 10, "periodSeconds": 60}],
    },
}


def find_target_value(autoscaling: Autoscaling) -> str:
    """Return the value that a pod should have, as a quantity."""
    return TARGETS[autoscaling.metric] if autoscaling.target is None else str(autoscaling.target)


def merge_behavior(autoscaling: Autoscaling) -> Manifest:
    """Return the speed of scaling: the user's, completed by ours."""
    return {**BEHAVIOR, **(autoscaling.behavior or {})}


def build_autoscaler(resource: Resource, spec: EmbeddingServiceSpec, revision: str) -> Manifest | None:
    """Return the autoscaler; None when the number of pods is fixed."""
    autoscaling = spec.autoscaling
    if autoscaling is None or spec.suspend:
        return None
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": METRICS[autoscaling.metric]},
            "target": {"type": "AverageValue", "averageValue": find_target_value(autoscaling)},
        },
    }
    return add_fingerprint(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": build_metadata(resource, build_deployment_name(resource, revision), revision),
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "name": build_deployment_name(resource, revision),
                },
                "minReplicas": autoscaling.min_replicas,
                "maxReplicas": autoscaling.max_replicas,
                # Our metric comes first, since the status reports its value.
                "metrics": [metric, *(autoscaling.metrics or ())],
                "behavior": merge_behavior(autoscaling),
            },
        }
    )
