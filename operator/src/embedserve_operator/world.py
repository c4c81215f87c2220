"""What is known about one EmbeddingService at a moment: frozen values, made by `observe`, read by `plan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from embedserve_operator.api.status import Condition, EmbeddingServiceStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.nodes import UNKNOWN_CLUSTER, ClusterFacts
from embedserve_operator.wire import Received


class Key(NamedTuple):
    """Which resource."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Resource:
    """The user's EmbeddingService."""

    key: Key
    uid: str
    generation: int
    spec: EmbeddingServiceSpec | None
    """None when this version of the operator cannot read it; then `problem` says why."""
    problem: str
    status: EmbeddingServiceStatus
    """What was last published."""

    def condition(self, kind: str) -> Condition | None:
        """A condition of the published status."""
        return next((c for c in self.status.conditions if c.type == kind), None)


class ChildRef(NamedTuple):
    """Which child object, inside the namespace of the resource."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Child:
    """A child object that exists, as it was received."""

    ref: ChildRef
    uid: str
    fingerprint: str
    """Fingerprint of the manifest that it was last applied from."""
    received: Received


@dataclass(frozen=True, slots=True)
class DeploymentFacts:
    """The parts of a Deployment that decisions rest on."""

    name: str
    revision: str
    fingerprint: str
    config: str
    """Name of the ConfigMap that its pods mount."""
    settled: bool
    """Its controller has seen the latest spec."""
    wanted: int
    """Pods that its spec asks for."""
    replicas: int
    updated: int
    ready: int
    available: int
    autoscaled: bool
    """It was last applied without a number of pods: an autoscaler decides."""
    space: str
    """The vector space that it is labelled with; empty before it is known."""
    creation_problem: str
    """Why its pods cannot be created (quota, admission), in the API server's words; empty when they can."""
    template: str = ""
    """Hash of its pod template."""
    declaration: str = ""
    """The fields of the manifest that declare its model, as JSON; empty when it does not say."""
    model_bytes: int | None = None
    """Size of the model's files that its template was made for."""


@dataclass(frozen=True, slots=True)
class AutoscalerFacts:
    """The parts of a HorizontalPodAutoscaler that decisions rest on."""

    target: str
    """Name of the Deployment."""
    current: int
    desired: int
    value: str | None
    """Average value of the first metric."""
    active: bool | None
    """Whether it can compute a number; None before its first look."""
    reason: str
    """Why, in one word, and in words."""
    message: str
    at_maximum: bool
    """It would have more pods than it may."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a pod does not serve."""

    reason: str
    """One CamelCase word."""
    message: str
    heals: bool
    """Whether waiting can heal it; False when somebody has to change something."""
    unplaced: bool = False
    """No node has taken the pod."""
    at: str = ""
    """When its container ended, as the kubelet says; empty where none has."""
    counts_from: int = 0
    """What may be over in a moment is none before then. Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What a pod's fetch container said about the model that it put into the store."""

    source: str
    revision: str | None
    digest: str | None
    size_bytes: int | None
    dimensions: int | None
    vector_space: str | None
    licence: str | None = None
    """As the source names it."""
    outputs: tuple[str, ...] = ()
    """What requests can ask for, in the words of the API; empty where it was not said."""
    onnx_outputs: tuple[str, ...] | None = None
    """What an ONNX file of it can give; None where it was not said."""
    foreign: bool = False
    """It is of no family of the runtime: what it gives is known once it was exported."""


@dataclass(frozen=True, slots=True)
class PodCheck:
    """What a pod answered when it was asked to prove its vectors."""

    space: str | None
    """Identity of what it makes; None when it could not be asked."""
    dimensions: int | None
    problem: str
    """Why it did not pass; empty when it did."""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How far a fetch is, as its pod said when it was last asked."""

    phase: str
    """What it is doing, in words."""
    bytes_done: int
    bytes_total: int
    """Grows while the source is being read: what weights there are to fetch is known after the small files."""
    bytes_per_second: int
    seconds_remaining: int | None
    """None where no rate is known."""


@dataclass(frozen=True, slots=True)
class Fetcher:
    """A pod that fetches now and can be asked how far it is."""

    name: str
    address: str
    run: str
    progress: FetchProgress | None = None


class Said(NamedTuple):
    """What passed between the operator and one run of a pod's container."""

    check: PodCheck | None = None
    told: str | None = None
    """The vector space that it was told the service's name stands for."""
    progress: FetchProgress | None = None


PodPhase = Literal["Pending", "Fetching", "Loading", "Ready", "Ending"]


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The parts of a pod that decisions rest on."""

    name: str
    revision: str
    template: str
    """Hash of the pod template that it was made from."""
    config: str
    """Name of the ConfigMap that it mounts."""
    phase: PodPhase
    failure: Failure | None
    report: ModelReport | None
    uid: str = ""
    address: str = ""
    """Its IP; empty before it has one."""
    run: str = ""
    """Names one run of its serving container: a restarted one knows nothing of what it was told."""
    space_label: str = ""
    """The vector space that it is labelled with."""
    check: PodCheck | None = None
    told: str | None = None
    fetcher: Fetcher | None = None
    """Where it fetches now."""

    @property
    def space(self) -> str | None:
        """The vector space that it makes, as far as it is known."""
        if self.check is not None and self.check.space is not None:
            return self.check.space
        return self.report.vector_space if self.report is not None else None


JobTask = Literal["fetch", "convert"]
JobState = Literal["Running", "Succeeded", "Failed"]


@dataclass(frozen=True, slots=True)
class VariantReport:
    """How a converted variant compares with plain float32."""

    precision: str
    published: bool
    reason: str | None
    """Why it is not published."""
    mean_cosine: float | None
    min_cosine: float | None
    max_difference: float | None
    rank_agreement: float | None
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion Job said about what it made."""

    artifact: str | None
    vector_space: str | None
    chosen: str | None
    """Precision that servers take by themselves."""
    variants: tuple[VariantReport, ...]
    dimensions: int | None = None
    outputs: tuple[str, ...] = ()
    """As of a ModelReport."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The parts of a Job that decisions rest on."""

    name: str
    uid: str
    task: JobTask
    owner: str
    """UID of the resource that it was made for."""
    template: str
    """Hash of the pod template that it was made from."""
    config: str
    """Name of the ConfigMap that its pods mount."""
    state: JobState
    failure: Failure | None
    """What its youngest pod suffers from, or why it was given up."""
    finished: str = ""
    """When it has succeeded, as the API server says; empty before."""
    report: ModelReport | None = None
    conversion: ConversionReport | None = None
    fetcher: Fetcher | None = None
    """Its pod that fetches now."""


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """The parts of a PersistentVolumeClaim that decisions rest on."""

    name: str
    uid: str
    access_modes: tuple[str, ...]
    storage_class: str | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a Job has found out about the model of a revision, before and beside what its pods say."""

    revision: str
    report: ModelReport


@dataclass(frozen=True, slots=True)
class World:
    """Everything that `plan` may look at."""

    resource: Resource
    children: tuple[Child, ...] = ()
    deployments: tuple[DeploymentFacts, ...] = ()
    autoscalers: tuple[AutoscalerFacts, ...] = ()
    serving_revision: str | None = None
    """Revision whose pods the Service selects; None before there was a Service."""
    pods: tuple[PodFacts, ...] = ()
    cluster: ClusterFacts = UNKNOWN_CLUSTER
    now: int = 0
    """Seconds since 1970."""
    due: int | None = None
    """When time alone makes a failure of what may be none yet. Seconds since 1970."""
    jobs: tuple[JobFacts, ...] = ()
    """Jobs on the claim that the resource uses, whichever resource they were made for."""
    claims: tuple[ClaimFacts, ...] | None = ()
    """The claim that the resource uses, if it exists; None where claims are not known."""

    fetched: Fetched | None = None
    """Of the revision that the spec asks for; filled in once the plan has looked at the Jobs."""

    @property
    def runs(self) -> frozenset[str]:
        """Of pods that something may have been said to, or by."""
        fetchers = (job.fetcher.run for job in self.jobs if job.fetcher is not None)
        return frozenset((*(pod.run for pod in self.pods), *fetchers))

    def job(self, name: str) -> JobFacts | None:
        """The Job of that name, if it exists."""
        return next((job for job in self.jobs if job.name == name), None)

    def child(self, ref: ChildRef) -> Child | None:
        """The child of that kind and name, if it exists."""
        return next((child for child in self.children if child.ref == ref), None)

    def deployment(self, revision: str) -> DeploymentFacts | None:
        """The Deployment of a revision, if it exists."""
        return next((d for d in self.deployments if d.revision == revision), None)

    def autoscaler(self, deployment: str) -> AutoscalerFacts | None:
        """The autoscaler of a Deployment, if it exists."""
        return next((a for a in self.autoscalers if a.target == deployment), None)

    def pods_of(self, revision: str) -> tuple[PodFacts, ...]:
        """The pods of a revision, by name."""
        return tuple(pod for pod in self.pods if pod.revision == revision)
