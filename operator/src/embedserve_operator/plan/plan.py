"""Defines the plan: frozen values that say what is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from embedserve_operator.api.status import (
    AutoscalingStatus,
    ConversionStatus,
    Endpoint,
    FetchStatus,
    HardwareStatus,
    RolloutStatus,
    ServedModel,
    VectorSpace,
)
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.plan.upgrade_cases import UpgradeStep
from embedserve_operator.state.jobs import JobState
from embedserve_operator.state.pods import FetchingPod, PodState
from embedserve_operator.state.resource import Child


@dataclass(frozen=True, slots=True)
class PlannedCondition:
    """Holds a condition without its time, which only the publisher of the status knows."""

    type: Literal[
        "Ready", "Reconciling", "Stalled", "ScalingActive", "AtMaximum", "PoolingGuessed", "Upgrading"
    ]
    status: Literal["True", "False"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PlannedStatus:
    """Holds the status to publish, without its times."""

    conditions: tuple[PlannedCondition, ...]
    replicas: int = 0
    ready_replicas: int = 0
    selector: str | None = None
    endpoint: Endpoint | None = None
    vector_space: VectorSpace | None = None
    model: ServedModel | None = None
    fetch: FetchStatus | None = None
    conversion: ConversionStatus | None = None
    rollout: RolloutStatus | None = None
    hardware: HardwareStatus | None = None
    autoscaling: AutoscalingStatus | None = None
    is_at_maximum: bool = False
    """Whether the autoscaler would have more pods than it is allowed to; only the publisher of the status
    knows since when.
    """


@dataclass(frozen=True, slots=True)
class ReplicasHandOver:
    """Says which number of pods is to be claimed for a Deployment whose manifest does not send it."""

    deployment: str
    replicas: int


@dataclass(frozen=True, slots=True)
class ReplacementTime:
    """Holds the annotation of a Deployment with the time at which the Service switched to another model."""

    deployment: str
    replaced_at: str | None
    """The time; None where the Deployment serves, so that nothing should be written there."""


@dataclass(frozen=True, slots=True)
class PodMessage:
    """Tells a pod which vector space the service has switched to."""

    pod: PodState
    space: str
    is_required: bool
    """Whether nothing may be written before the pod has received it."""


@dataclass(frozen=True, slots=True)
class SelfCheckRequest:
    """Requests the self-check of a pod."""

    pod: PodState


@dataclass(frozen=True, slots=True)
class PodLabel:
    """Says which vector space a pod is to be labelled with."""

    pod: PodState
    space: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Says what is to be done about one resource."""

    children: tuple[Manifest, ...]
    """The children as they should be, in the order in which they are applied."""
    prune: tuple[Child, ...]
    """The children that are no longer wanted."""
    status: PlannedStatus
    upgrade: UpgradeStep = "Unaffected"
    """What an upgrade of the operator does with the pods that serve."""
    jobs_to_create: tuple[Manifest, ...] = ()
    """The Jobs to create, unless they exist by then."""
    jobs_to_delete: tuple[JobState, ...] = ()
    """The Jobs to delete."""
    hand_overs: tuple[ReplicasHandOver, ...] = ()
    """The numbers of pods to claim, at most one for a Deployment."""
    replacement_times: tuple[ReplacementTime, ...] = ()
    """What is to be written before any child, so that it is not lost whatever happens then."""
    labels: tuple[PodLabel, ...] = ()
    messages: tuple[PodMessage, ...] = ()
    """The messages to send before anything is written, in their order."""
    self_checks: tuple[SelfCheckRequest, ...] = ()
    """The self-checks to request after everything is written; the next pass sees the answers."""
    fetching_pods: tuple[FetchingPod, ...] = ()
    """The pods that can say how far the fetch has come.

    They are asked from time to time, and later passes see the answers.
    """
    unstarted_jobs: tuple[JobState, ...] = ()
    """The Jobs that should have had a pod by now; events say why they have none."""
    wake_after: int | None = None
    """Seconds after which another pass is due even if nothing happens."""
