"""Describes Jobs, the claim that they fill, and what a conversion has reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from embedserve_operator.state.failures import Failure
from embedserve_operator.state.models import ModelReport
from embedserve_operator.state.pods import FetchingPod

JobTask = Literal["plan", "fetch", "convert"]


JobPhase = Literal["Running", "Succeeded", "Failed"]


@dataclass(frozen=True, slots=True)
class VariantReport:
    """A comparison of a converted variant with plain float32."""

    precision: str
    published: bool
    reason: str | None
    """The reason why the variant is not published; None where it is."""
    mean_cosine: float | None
    min_cosine: float | None
    max_difference: float | None
    rank_agreement: float | None
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """The result of a conversion Job, as it reported it."""

    artifact: str | None
    vector_space: str | None
    chosen: str | None
    """The precision that servers use unless they are told otherwise."""
    variants: tuple[VariantReport, ...]
    dimensions: int | None = None
    outputs: tuple[str, ...] = ()
    """The outputs that requests can ask for, in the words of the API."""
    guesses_pooling: bool = False
    """Indicates that no file of the model says how to pool, and the mean is taken; False too where nothing was
    reported.
    """
    former_vector_space: str | None = None
    """The name that releases before `vs2-` gave the same vector space; None where they gave it none."""


@dataclass(frozen=True, slots=True)
class JobState:
    """The parts of a Job that decisions rest on."""

    name: str
    uid: str
    task: JobTask
    owner: str
    """The UID of the resource that the Job was made for."""
    template_hash: str
    """The hash of the pod template that the Job was made from."""
    config_map: str
    """The name of the ConfigMap that the pods of the Job mount."""
    phase: JobPhase
    failure: Failure | None
    """The failure of its youngest pod, or the reason why the Job was given up."""
    finished_at: str = ""
    """The time at which the Job succeeded, as the API server says; empty before."""
    report: ModelReport | None = None
    conversion: ConversionResult | None = None
    fetching_pod: FetchingPod | None = None
    """The pod of the Job that is fetching now."""
    is_lingering: bool = False
    """Indicates that its task has succeeded while another container of the pod, a sidecar, keeps the Job from ending.
    """
    unstarted_since: int | None = None
    """The time since which the Job exists and has had no pod, in seconds since 1970; None once it has had one."""


@dataclass(frozen=True, slots=True)
class ClaimState:
    """The parts of a PersistentVolumeClaim that decisions rest on."""

    name: str
    uid: str
    access_modes: tuple[str, ...]
    storage_class: str | None
    size: int | str | None = None
    """The room that it asks for, as a quantity."""
    is_being_deleted: bool = False
    """Indicates that somebody has deleted it: it goes as soon as no pod mounts it any more."""
