"""What a plan is: values only."""

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
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Child, Fetcher, JobFacts, PodFacts


@dataclass(frozen=True, slots=True)
class PlannedCondition:
    """A condition without its time, which only the writer of the status knows."""

    type: Literal["Ready", "Reconciling", "Stalled", "ScalingActive", "AtMaximum"]
    status: Literal["True", "False"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PlannedStatus:
    """The status to publish, times aside."""

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
    at_maximum: bool = False
    """The autoscaler would have more pods than it may; since when, only the writer of the status knows."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """The number of pods of a Deployment, to be claimed for an autoscaler."""

    deployment: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Notice:
    """What a pod is to be told: the vector space that the service's name stands for."""

    pod: PodFacts
    space: str
    must: bool
    """Nothing may be written before the pod knows."""


@dataclass(frozen=True, slots=True)
class Question:
    """A pod that is to prove its vectors."""

    pod: PodFacts


@dataclass(frozen=True, slots=True)
class PodLabel:
    """The vector space that a pod is to be labelled with."""

    pod: PodFacts
    space: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about one resource."""

    children: tuple[Manifest, ...]
    """Children as they should be, in the order to apply them."""
    prune: tuple[Child, ...]
    """Children that are wanted no longer."""
    status: PlannedStatus
    start: tuple[Manifest, ...] = ()
    """Jobs to be created, unless they exist by then."""
    remove: tuple[JobFacts, ...] = ()
    """Jobs to be deleted."""
    hand_over: HandOver | None = None
    labels: tuple[PodLabel, ...] = ()
    notices: tuple[Notice, ...] = ()
    """In their order, before anything is written."""
    questions: tuple[Question, ...] = ()
    """After everything is written; the next pass sees the answers."""
    fetchers: tuple[Fetcher, ...] = ()
    """Pods that can say how far the fetch is. To be asked now and again; further passes see the answers."""
    wake_after: int | None = None
    """Seconds after which another pass is due even if nothing happens."""
