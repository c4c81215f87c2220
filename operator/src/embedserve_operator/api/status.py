"""`status`: what the operator says about a resource."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from embedserve_operator.api.base import Model


class Condition(Model):
    """One statement about the service."""

    type: Annotated[str, Field(max_length=316)]
    """Ready, Reconciling, Stalled, ScalingActive, AtMaximum, PoolingGuessed or SelfCheckFailed. Reconciling, Stalled,
    AtMaximum, PoolingGuessed and SelfCheckFailed exist only while they are true."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """Cause as one word, for programs."""
    message: Annotated[str, Field(max_length=32768)]
    """Human-readable description of the cause."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """Time of the last change of the status."""
    observed_generation: int | None = None
    """Generation of the resource that the statement is about."""


class Endpoint(Model):
    """Addresses of the service."""

    url: str
    """Base URL inside the cluster."""
    grpc: str | None = None
    """Host and port for gRPC inside the cluster; absent without it."""


Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]

Outputs = Annotated[tuple[Annotated[str, Field(max_length=32)], ...], Field(max_length=16)]


class PreviousSpace(Model):
    """A vector space that was served before."""

    id: str
    """Identity of the vector space."""
    dimensions: int | None = None
    """Length of a vector."""
    revision: str
    """Revision of the manifest that made it."""
    size_bytes: int | None = None
    """Size of its model's files."""
    replaced_at: Moment
    """Time at which another vector space took the service's name."""
    kept_until: Moment | None = None
    """Time until which its pods stay; absent when they are gone."""
    url: str | None = None
    """Base URL of its own name, while its pods stay."""


class VectorSpace(Model):
    """Vector space that is served. Vectors of different spaces must never be compared."""

    id: str | None = None
    """Identity: the same for all ways to make the same vectors, different otherwise. Absent while it is not known."""
    compute: Annotated[tuple[str, ...], Field(max_length=10)] | None = None
    """Precision that computes the vectors, as the pods report it: float32, bfloat16, float16, fp8, or with the digest
    of a converted file int8@1f0c54d0a9e2. Several while pods are replaced; absent while none has reported it."""
    min_cosine: float | None = None
    """Minimum cosine of a text's vector to that of a more exact precision, as the pods have measured it of what they
    serve: of the furthest pod. Absent where nothing was measured, as of float32."""
    dimensions: int | None = None
    """Length of a vector."""
    outputs: Outputs = ()
    """Outputs that requests can ask for: dense, sparse, multiVector, score, labels, hidden."""
    revision: str | None = None
    """Revision of the manifest that makes it: the end of its Deployment's name."""
    since: Moment | None = None
    """Since when it is served at the service's name."""
    url: str | None = None
    """Base URL of its own name, which never leads to another one."""
    previous: Annotated[tuple[PreviousSpace, ...], Field(max_length=10)] = ()
    """Spaces that were served before, the latest first."""


class RolloutStatus(Model):
    """The revision that the manifest asks for while another one is served."""

    revision: str
    """Revision: the end of its Deployment's name."""
    state: Literal["Preparing", "Checking", "Held", "Refused"]
    """Preparing: its pods come up. Checking: their vectors are checked. Held: waits for
    spec.rollout.hold to be false, ready or, where there is no room for both, not begun. Refused:
    spec.rollout.onNewVectorSpace says so."""
    vector_space: str | None = None
    """Its identity, once it is known."""
    dimensions: int | None = None
    """Length of a vector."""
    size_bytes: int | None = None
    """Size of its model's files."""
    url: str | None = None
    """Base URL of its own name, once its vector space is known."""


class Fetching(Model):
    """A fetch under way. Looked at every few seconds."""

    phase: str
    """Present step: resolving, fetching, unpacking, storing, reading, or what is waited for."""
    bytes_done: int
    """Bytes that are there."""
    bytes_total: int
    """Bytes that are needed, as far as it is known."""
    bytes_per_second: int
    """Rate, over the last 20 seconds."""
    seconds_remaining: int | None = None
    """At that rate; absent while there is none."""


MAX_ADAPTER_TASKS = 64
MAX_ADAPTER_TASK_LENGTH = 200


class AdapterTask(Model):
    """A task that the model has an adapter for."""

    name: Annotated[str, Field(max_length=MAX_ADAPTER_TASK_LENGTH)]
    """Name of the task, as `spec.model.adapters` and requests have it."""
    vector_space: str | None = None
    """Identity of its vector space; absent where the task is not served."""


AdapterTasks = Annotated[tuple[AdapterTask, ...], Field(max_length=MAX_ADAPTER_TASKS)]


class ModelStatus(Model):
    """The model that is served now."""

    source: str
    """Repository or volume folder that it came from."""
    revision: str | None = None
    """Commit that the source resolved to."""
    digest: str | None = None
    """Digest of the model's files."""
    size_bytes: int | None = None
    """Size of the model's files."""
    licence: str | None = None
    """Licence, as the source names it."""
    guesses_pooling: bool | None = None
    """True where no file of the model says how to pool and the mean is taken; absent where one does, or where the
    pods did not say."""
    adapter_tasks: AdapterTasks | None = None
    """Tasks that it has adapters for, first those that are served, and of them the one of requests that name none;
    absent where it has none."""
    fetching: Fetching | None = None
    """Progress of the fetch of the spec's model; absent while none is under way."""


class JobStatus(Model):
    """A Job, and what came of it; it stays here when the Job is gone."""

    job: str
    """Name of the Job. It stands for what the Job works on: another model has another one."""
    state: Literal["Running", "Succeeded", "Failed"]
    """Failed is final, until the resource changes."""
    template: str
    """Hash of the pods that were tried."""
    generation: int
    """Generation of the resource that they were tried for."""
    reason: str | None = None
    """Machine-readable reason of the failure, in CamelCase."""
    message: str | None = None
    """Human-readable reason of the failure."""
    finished_at: Moment | None = None
    """Time at which it succeeded."""


class ModelMemory(Model):
    """Memory of the model in a pod on CPUs, from which the pods' memory is computed."""

    fixed_bytes: int
    """The process, the weights, tables and the tokenizer."""
    loading_bytes: int
    """Bytes that loading takes besides, for a moment."""
    batch_bytes: int
    """Bytes that a batch takes, however small it is."""
    token_bytes: int
    """For each token of a batch."""
    score_bytes: int
    """For the attention scores of texts of up to 512 tokens, in each batch."""
    long_token_bytes: int
    """For each token of a longer text."""
    result_numbers: int
    """The numbers of one input's result."""
    max_length: int
    """The tokens of the longest text that the model takes."""


class PlanStatus(JobStatus):
    """Plan of what the spec's model takes, from the headers of its files."""

    size_bytes: int | None = None
    """Size of the model's files."""
    memory: ModelMemory | None = None
    """Memory that it takes; absent where that cannot be planned."""


class FetchStatus(JobStatus):
    """Fetch of the spec's model into the cache."""

    source: str | None = None
    """Repository, URL or folder that it came from."""
    revision: str | None = None
    """Commit that the source resolved to."""
    digest: str | None = None
    """Digest of the model's files."""
    size_bytes: int | None = None
    """Size of the model's files."""
    dimensions: int | None = None
    """Length of a vector."""
    vector_space: str | None = None
    """Identity of its vector space."""
    former_vector_space: str | None = None
    """Name that releases before vs2- gave the same vector space; absent where they had another one."""
    licence: str | None = None
    """Licence, as the source names it."""
    outputs: Outputs = ()
    """Outputs that requests can ask for: dense, sparse, multiVector, score, labels, hidden."""
    onnx_outputs: Outputs | None = None
    """Names that `spec.onnx.outputs` may have; absent where the fetch did not report them."""
    guesses_pooling: bool | None = None
    """True where no file of the model says how to pool and the mean is taken; absent where one does, or where the
    fetch did not say."""
    adapter_tasks: AdapterTasks | None = None
    """Tasks that it has adapters for, first those that are served; absent where it has none."""
    memory: ModelMemory | None = None
    """Memory that it takes; absent where that cannot be planned, or the fetch did not report it."""
    needs_export: bool | None = None
    """The model is of no family of the runtime, and is exported by torch; absent where it need not be."""


class VariantStatus(Model):
    """A converted variant against plain float32."""

    precision: str
    """float32, float16 or int8."""
    published: bool
    """True if it may be served."""
    reason: str | None = None
    """Human-readable reason why it is not served."""
    mean_cosine: float | None = None
    """Mean cosine of its vectors to float32's."""
    min_cosine: float | None = None
    """Minimum cosine similarity to the vectors of float32."""
    max_difference: float | None = None
    """Largest difference of a component."""
    rank_agreement: float | None = None
    """Rank correlation of its scores with float32's."""
    tokens_per_second: float | None = None
    """Speed on the node that converted."""


class ConversionStatus(JobStatus):
    """Conversion of the model into an ONNX artifact."""

    artifact: str | None = None
    """Name of the artifact in the cache."""
    vector_space: str | None = None
    """Identity of its vector space: that of the model."""
    former_vector_space: str | None = None
    """Name that releases before vs2- gave the same vector space; absent where they had another one."""
    dimensions: int | None = None
    """Length of a vector."""
    outputs: Outputs = ()
    """Outputs that requests can ask for: dense, sparse, multiVector, score, labels, hidden."""
    guesses_pooling: bool | None = None
    """True where no file of the model says how to pool and the mean is taken; absent where one does, or where the
    conversion did not say."""
    chosen: str | None = None
    """Variant that is served unless `model.precision` names another: the fastest that passed."""
    fallback: str | None = None
    """Reason why something slower is served than was asked for; absent where nothing is."""
    variants: tuple[VariantStatus, ...] = ()
    """Measurements of each variant."""


class HardwareStatus(Model):
    """Nodes that the pods may run on."""

    class_: Annotated[str, Field(alias="class")]
    """Hardware class."""
    matching_nodes: int | None = None
    """Nodes that fit the class and the pod settings; absent where the operator does not watch nodes."""


class AutoscalingStatus(Model):
    """State of the autoscaler."""

    current_replicas: int
    """Pods that it has counted."""
    desired_replicas: int
    """Pods that it wants."""
    metric: str
    """Metric that it scales by, as in spec.autoscaling.metric."""
    value: str | None = None
    """The metric's value of a pod, on average; absent while it is not known."""
    target: str
    """The value that a pod should have."""
    at_maximum_since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Since when it would have more pods than it may."""


class EmbeddingServiceStatus(Model):
    """State of what is served, and what keeps it from being what the spec asks for."""

    observed_generation: int = -1
    """Last generation of the resource that the operator acted upon; -1 before the first."""
    conditions: tuple[Condition, ...] = ()
    """Ready tells what is served. Reconciling and Stalled exist only while true: on the way, and stuck until
    something is changed."""
    replicas: int | None = None
    """Pods that exist of what is served."""
    ready_replicas: int | None = None
    """Pods that are ready of what is served."""
    selector: str | None = None
    """Label selector of the pods that are served from."""
    endpoint: Endpoint | None = None
    """Addresses of the service."""
    vector_space: VectorSpace | None = None
    """Vector space that is served."""
    model: ModelStatus | None = None
    """The model that is served now."""
    plan: PlanStatus | None = None
    """Plan of what the spec's model takes, made before its first pods; absent without one."""
    fetch: FetchStatus | None = None
    """Fetch of the spec's model into the cache; absent without one."""
    conversion: ConversionStatus | None = None
    """Conversion into an ONNX artifact; absent where there is none."""
    rollout: RolloutStatus | None = None
    """The revision that the manifest asks for; absent when it is the one that is served."""
    hardware: HardwareStatus | None = None
    """Nodes that the pods may run on."""
    autoscaling: AutoscalingStatus | None = None
    """State of the autoscaler; absent where there is none, or it has not looked yet."""
