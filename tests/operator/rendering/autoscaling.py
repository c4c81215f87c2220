"""Autoscalers."""

from __future__ import annotations

from tests.operator.builders import hub_spec
from tests.operator.rendering.case import AUTOSCALED, BUDGET, DEPLOYMENT, Case
from tests.support.differences import GONE

CASES = (
    Case(
        "an autoscaler by the depth of the queue decides how many pods there are",
        AUTOSCALED,
        {
            f"{DEPLOYMENT}.metadata.annotations.embedserve.dev/scaled-by": "autoscaler",
            f"{DEPLOYMENT}.spec.replicas": GONE,
            "HorizontalPodAutoscaler docs": {
                "spec": {
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "docs-HASH"},
                    "minReplicas": 2,
                    "maxReplicas": 8,
                    "metrics": [
                        {
                            "type": "Pods",
                            "pods": {
                                "metric": {"name": "embedserve_queue_depth"},
                                "target": {"type": "AverageValue", "averageValue": "64"},
                            },
                        }
                    ],
                    "behavior": {
                        "scaleUp": {
                            "stabilizationWindowSeconds": 0,
                            "selectPolicy": "Max",
                            "policies": [
                                {"type": "Percent", "value": 200, "periodSeconds": 15},
                                {"type": "Pods", "value": 4, "periodSeconds": 15},
                            ],
                        },
                        "scaleDown": {
                            "stabilizationWindowSeconds": 300,
                            "selectPolicy": "Max",
                            "policies": [{"type": "Percent", "value": 10, "periodSeconds": 60}],
                        },
                    },
                }
            },
            "PodDisruptionBudget docs": BUDGET,
        },
    ),
    Case(
        "the autoscaler has the user's metric, target and behavior",
        hub_spec(
            autoscaling={
                "maxReplicas": 4,
                "metric": "queueSeconds",
                "target": 2,
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
            }
        ),
        {
            "HorizontalPodAutoscaler docs.spec.minReplicas": 1,
            "HorizontalPodAutoscaler docs.spec.maxReplicas": 4,
            "HorizontalPodAutoscaler docs.spec.metrics[0].pods.metric.name": "embedserve_queue_seconds",
            "HorizontalPodAutoscaler docs.spec.metrics[0].pods.target.averageValue": "2",
            "HorizontalPodAutoscaler docs.spec.behavior.scaleDown.stabilizationWindowSeconds": 60,
            "HorizontalPodAutoscaler docs.spec.behavior.scaleDown.selectPolicy": GONE,
            "HorizontalPodAutoscaler docs.spec.behavior.scaleDown.policies": GONE,
        },
        base=AUTOSCALED,
    ),
    Case(
        "a suspended service has neither an autoscaler nor pods",
        hub_spec(autoscaling={"maxReplicas": 4}, suspend=True),
        {
            f"{DEPLOYMENT}.metadata.annotations.embedserve.dev/scaled-by": GONE,
            f"{DEPLOYMENT}.spec.replicas": 0,
            "HorizontalPodAutoscaler docs": GONE,
            "PodDisruptionBudget docs": GONE,
        },
        base=AUTOSCALED,
    ),
)
