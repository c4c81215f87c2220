"""Autoscalers."""

from __future__ import annotations

from tests.operator.builders import hub_spec
from tests.operator.rendering.case import AUTOSCALED, DEPLOYMENT, Case
from tests.support.differences import GONE

CASES = (
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
