"""Reads Deployments and autoscalers."""

from __future__ import annotations

from collections.abc import Mapping

from embedserve_operator.kube.views.objects import find_condition
from embedserve_operator.kube.views.workloads import (
    AutoscalerStatus,
    Deployment,
    DeploymentStatus,
    HorizontalPodAutoscaler,
)
from embedserve_operator.manifests.metadata import (
    DECLARATION,
    FINGERPRINT,
    FOLLOWED,
    GENERATION,
    MODEL_BYTES,
    MODEL_MEMORY,
    REPLACED_AT,
    REVISION_LABEL,
    SCALED_BY,
    SETTINGS,
    SPACE_LABEL,
    TEMPLATE_HASH,
    UPGRADE,
)
from embedserve_operator.observe.pods import read_annotated_report, read_mounted_config_map
from embedserve_operator.observe.reports import ReportedMemory, read_memory
from embedserve_operator.state.models import ModelSize
from embedserve_operator.state.upgrades import UpgradePhase
from embedserve_operator.state.workloads import AutoscalerState, DeploymentState


def read_deployment(deployment: Deployment) -> DeploymentState:
    """Return the state of a Deployment."""
    metadata, template, status = deployment.metadata, deployment.spec.template, deployment.status
    generation = metadata.annotations.get(GENERATION, "")
    return DeploymentState(
        name=metadata.name,
        revision=metadata.labels.get(REVISION_LABEL, ""),
        fingerprint=metadata.annotations.get(FINGERPRINT, ""),
        config_map=read_mounted_config_map(template.spec),
        is_settled=status.observed_generation >= metadata.generation,
        desired_replicas=deployment.spec.replicas,
        replicas=status.replicas,
        updated=status.updated_replicas,
        ready=status.ready_replicas,
        available=status.available_replicas,
        is_autoscaled=bool(metadata.annotations.get(SCALED_BY)),
        space=metadata.labels.get(SPACE_LABEL, ""),
        creation_problem=_find_creation_problem(status),
        template_hash=template.metadata.annotations.get(TEMPLATE_HASH, ""),
        declaration=metadata.annotations.get(DECLARATION, ""),
        settings=metadata.annotations.get(SETTINGS, ""),
        followed=metadata.annotations.get(FOLLOWED),
        generation=int(generation) if generation.isdecimal() else None,
        upgrade=_read_upgrade(metadata.annotations.get(UPGRADE, "")),
        is_stuck=_is_stuck(status),
        replaced_at=metadata.annotations.get(REPLACED_AT, ""),
        report=read_annotated_report(template.metadata),
        model_size=_read_model_size(metadata.annotations),
        runtime_class=template.spec.runtime_class_name or None,
    )


def _read_model_size(annotations: Mapping[str, str]) -> ModelSize | None:
    count = annotations.get(MODEL_BYTES, "")
    if not count.isdecimal():
        return None
    planned = ReportedMemory.parse_json(annotations.get(MODEL_MEMORY, ""))
    return ModelSize(int(count), read_memory(planned))


def _find_creation_problem(status: DeploymentStatus) -> str:
    failure = find_condition(status.conditions, "ReplicaFailure")
    return failure.message if failure is not None and failure.is_true else ""


def _read_upgrade(phase: str) -> UpgradePhase:
    if phase == "Rolling":
        return "Rolling"
    return "Failed" if phase == "Failed" else ""


def _is_stuck(status: DeploymentStatus) -> bool:
    progress = find_condition(status.conditions, "Progressing")
    return progress is not None and progress.reason == "ProgressDeadlineExceeded"


def read_upgrade_phase(deployment: Deployment) -> UpgradePhase:
    """Return how far an upgrade has come with a Deployment: empty where all its pods are ready, whatever it says."""
    state = read_deployment(deployment)
    return "" if state.is_rolled_out else state.upgrade


def read_autoscaler(autoscaler: HorizontalPodAutoscaler) -> AutoscalerState:
    """Return the state of an autoscaler."""
    status = autoscaler.status
    active = find_condition(status.conditions, "ScalingActive")
    limited = find_condition(status.conditions, "ScalingLimited")
    return AutoscalerState(
        target=autoscaler.spec.scale_target_ref.name,
        current=status.current_replicas,
        desired=status.desired_replicas,
        value=_find_value(status),
        is_active=None if active is None else active.is_true,
        reason="" if active is None else active.reason,
        message="" if active is None else active.message,
        is_at_maximum=limited is not None and limited.is_true and limited.reason == "TooManyReplicas",
    )


def _find_value(status: AutoscalerStatus) -> str | None:
    """Return the average value of the first metric; None when it is not known yet."""
    if not status.current_metrics:
        return None
    metric = status.current_metrics[0]
    return metric.pods.current.average_value or metric.external.current.average_value or None
