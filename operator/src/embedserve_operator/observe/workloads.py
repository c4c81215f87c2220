"""This module reads Deployments and autoscalers."""

from __future__ import annotations

from embedserve_operator.kube.objects import Received, dig, mappings, number, text
from embedserve_operator.manifests.metadata import (
    DECLARATION,
    FINGERPRINT,
    MODEL_BYTES,
    REVISION_LABEL,
    SCALED_BY,
    SPACE_LABEL,
    TEMPLATE_HASH,
)
from embedserve_operator.observe.pods import read_mounted_config_map
from embedserve_operator.state.workloads import AutoscalerState, DeploymentState


def read_deployment(received: Received) -> DeploymentState:
    status = dig(received, "status")
    creation_problem = ""
    size = text(received, "metadata", "annotations", MODEL_BYTES)
    for condition in mappings(status, "conditions"):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            creation_problem = text(condition, "message")
    return DeploymentState(
        name=text(received, "metadata", "name"),
        revision=text(received, "metadata", "labels", REVISION_LABEL),
        fingerprint=text(received, "metadata", "annotations", FINGERPRINT),
        config_map=read_mounted_config_map(dig(received, "spec", "template", "spec")),
        is_settled=number(status, "observedGeneration") >= number(received, "metadata", "generation"),
        desired_replicas=number(received, "spec", "replicas"),
        replicas=number(status, "replicas"),
        updated=number(status, "updatedReplicas"),
        ready=number(status, "readyReplicas"),
        available=number(status, "availableReplicas"),
        is_autoscaled=bool(text(received, "metadata", "annotations", SCALED_BY)),
        space=text(received, "metadata", "labels", SPACE_LABEL),
        creation_problem=creation_problem,
        template_hash=text(received, "spec", "template", "metadata", "annotations", TEMPLATE_HASH),
        declaration=text(received, "metadata", "annotations", DECLARATION),
        model_bytes=int(size) if size.isdecimal() else None,
    )


def read_autoscaler(received: Received) -> AutoscalerState:
    status = dig(received, "status")
    conditions = {text(one, "type"): one for one in mappings(status, "conditions")}
    active, limited = conditions.get("ScalingActive"), conditions.get("ScalingLimited")
    metric = dig(status, "currentMetrics", 0)
    return AutoscalerState(
        target=text(received, "spec", "scaleTargetRef", "name"),
        current=number(status, "currentReplicas"),
        desired=number(status, "desiredReplicas"),
        value=next(
            (
                found
                for kind in ("pods", "external")
                if (found := text(metric, kind, "current", "averageValue"))
            ),
            None,
        ),
        is_active=None if active is None else active.get("status") == "True",
        reason=text(active, "reason"),
        message=text(active, "message"),
        is_at_maximum=text(limited, "status") == "True" and text(limited, "reason") == "TooManyReplicas",
    )
