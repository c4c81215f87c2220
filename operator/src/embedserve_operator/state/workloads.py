"""Describes Deployments and their autoscalers."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.state.models import ModelReport, ModelSize
from embedserve_operator.state.upgrades import UpgradePhase


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """The parts of a Deployment that decisions rest on."""

    name: str
    revision: str
    fingerprint: str
    config_map: str
    """The name of the ConfigMap that its pods mount."""
    is_settled: bool
    """Indicates that its controller has seen the latest spec."""
    desired_replicas: int
    """The number of pods that its spec asks for."""
    replicas: int
    updated: int
    ready: int
    available: int
    is_autoscaled: bool
    """Indicates that it was last applied without a number of pods, since an autoscaler decides it."""
    space: str
    """The vector space that it is labelled with; empty before that is known."""
    creation_problem: str
    """The reason why its pods cannot be created (quota, admission), as the API server says; empty when they can."""
    template_hash: str = ""
    """The hash of its pod template."""
    declaration: str = ""
    """The fields of the manifest that declare its model, as JSON; empty when the Deployment does not say."""
    settings: str = ""
    """The fields of the manifest that say how its pods run, as JSON; empty when the Deployment does not say."""
    followed: str | None = None
    """The edits that it has followed of a manifest that asks for another model, as JSON; empty where the manifest asks
    for its own again, None where it never asked for another.
    """
    generation: int | None = None
    """The generation of the resource that it was made from; None where it does not say."""
    upgrade: UpgradePhase = ""
    is_stuck: bool = False
    """Indicates that its controller has given up waiting for pods to become ready."""
    replaced_at: str = ""
    """The time at which the Service switched from this model to another one; empty if it did not."""
    report: ModelReport | None = None
    """The report of a Job about the model, as its pod template says."""
    model_size: ModelSize | None = None
    """Size of the model that its pod template was made for."""
    runtime_class: str | None = None
    """RuntimeClass of its pods."""

    @property
    def file_bytes(self) -> int | None:
        """Size of the model's files, where it is known."""
        return self.model_size.file_bytes if self.model_size is not None else None

    @property
    def is_rolled_out(self) -> bool:
        """Return whether all pods that its spec asks for are of its present template and ready, and there are no
        others.
        """
        replicas = self.desired_replicas
        return self.is_settled and self.available >= replicas and self.replicas == self.updated == replicas


@dataclass(frozen=True, slots=True)
class AutoscalerState:
    """The parts of a HorizontalPodAutoscaler that decisions rest on."""

    target: str
    """The name of the Deployment that it scales."""
    current: int
    desired: int
    value: str | None
    """Average value of its first metric."""
    is_active: bool | None
    """Indicates that it can compute a number of pods; None before its first look."""
    reason: str
    """Machine-readable reason why it can or cannot compute a number of pods; `message` is the human-readable one."""
    message: str
    is_at_maximum: bool
    """Indicates that it would have more pods than it is allowed to."""
