"""EmbeddingService as types: the source of the CRD, of its validation and of `kubectl explain`.

Docstrings are what users read; write them for users.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from embedserve_operator.api.base import (
    QUALIFIED_KEYS,
    LabelName,
    Model,
    PositiveQuantity,
    Quantity,
    RawObject,
)
from embedserve_operator.api.cache import Cache, OnnxConversion, ParityFloor
from embedserve_operator.api.network import ApiSettings, Monitoring, NetworkPolicySettings, ServiceSettings
from embedserve_operator.api.pods import JobSettings, PodSettings
from embedserve_operator.api.quantities import parse_quantity
from embedserve_operator.api.rollouts import RolloutSettings
from embedserve_operator.api.rules import Rule, between, matches
from embedserve_operator.api.sources import (
    S3_VARIABLES,
    ModelSource,
    SecretKeyRef,
)

GROUP = "embedserve.dev"
VERSION = "v1alpha1"
KIND = "EmbeddingService"
PLURAL = "embeddingservices"
API_VERSION = f"{GROUP}/{VERSION}"
OPERATOR_CLASS = f"{GROUP}/operator-class"
"""Label by which a resource chooses one of several operators; without it, the one that has no class."""


def build_class_selector(operator_class: str) -> str:
    """Return the label selector of the resources that an operator of a class works on; empty: of none."""
    return f"{OPERATOR_CLASS}={operator_class}" if operator_class else f"!{OPERATOR_CLASS}"


OnnxFile = Annotated[
    str,
    Field(max_length=1024),
    Rule(
        cel="self.endsWith('.onnx') && !self.startsWith('/') && !self.split('/').exists(part, part == '..')",
        message="must be the path of an ONNX file inside the repository, such as onnx/model.onnx",
        check=lambda v: v.endswith(".onnx") and not v.startswith("/") and ".." not in v.split("/"),
    ),
]


class ModelSpec(Model):
    """The model and how its vectors are made."""

    source: ModelSource
    """Source of the model: exactly one of the fields."""
    refresh: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Any text, for example a date. What a branch or a bucket's prefix stands for is looked up once and kept; a new
    value looks it up again, and the model found starts beside the one that serves."""
    onnx_file: OnnxFile | None = None
    """ONNX file of the repository that is run instead of its weights, by its path, for example
    onnx/model.onnx. Without it one is taken only where nothing else can run the model."""
    task: Literal["auto", "embed", "rerank", "classify", "sparse"] = "auto"
    """Task of the model. `auto` takes what the model's own files say."""
    outputs: Annotated[tuple[Literal["dense", "sparse", "multiVector"], ...], Field(max_length=3)] = ()
    """Outputs that the service must offer. A model that gives less is refused, with what it gives; anything more that
    it gives can be asked for all the same. Of a masked-LM model, `[dense, sparse]` makes both of one forward pass."""
    adapters: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(max_length=16)
    ] = ()
    """Tasks of a model that has an adapter for each of several, for example [retrieval]: a request names one, and the
    first is for requests that name none. Each takes memory for weights of its own. Without it the model is what its
    authors serve where no task is named."""
    pooling: Literal["auto", "cls", "mean", "mean_sqrt", "weighted_mean", "max", "last"] = "auto"
    """Pooling of token vectors into one vector. `auto` takes what the model's own files say."""
    dimensions: (
        Annotated[int, between(1, 65536, "leave it out to keep all dimensions of the model")] | None
    ) = None
    """Number of dimensions that vectors are truncated to, for Matryoshka models. Without it all are kept."""
    max_length: Annotated[int, between(1, 1_000_000, "leave it out to take the model's own limit")] | None = (
        None
    )
    """Maximum number of tokens of an input, special tokens included. Without it the model's own limit holds."""
    precision: Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"] = "auto"
    """Precision of weights and matrix products. `auto` takes what the hardware class says, else on CPUs the fastest
    variant that `onnx` has found good enough, float32 without one. On CPUs int8 needs `onnx`. On accelerators int8
    (from ampere on) and fp8 (from ada on) run the large products in 8 bit where the vectors stay near
    enough to those in 16."""
    min_cosine: ParityFloor | None = None
    """For int8 and fp8 on accelerators: the minimum cosine of a text's vector to that in 16 bit, measured at start;
    without it 0.999. Below it the pods serve 16 bit. A lower floor accepts vectors that are further off, and
    `status.vectorSpace.minCosine` says how far. Converted variants have `onnx.parity`."""


class Hardware(Model):
    """Hardware that the pods run on."""

    class_: Annotated[LabelName, Field(alias="class")] = "cpu"
    """Hardware class: cpu, cpu-x86, cpu-arm64, turing, ampere, ada, hopper, blackwell, blackwell-rtx,
    dgx-spark, or one that the chart's values define."""
    count: Annotated[int, between(1, 64, "leave it out for one accelerator")] | None = None
    """Accelerators of a replica; only for classes that have some."""
    resource_name: (
        Annotated[
            str,
            Field(max_length=253),
            matches(
                r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
                "must be a resource's name such as nvidia.com/gpu or nvidia.com/mig-1g.10gb",
            ),
        ]
        | None
    ) = None
    """Resource that stands for the accelerator, instead of that of the class: a MIG slice, for example."""


class Batching(Model):
    """Token-budget batching and its bounds."""

    max_batch_tokens: (
        Annotated[int, between(1, 10_000_000, "leave it out to let the runtime measure the best value")]
        | None
    ) = None
    """Tokens of one forward pass. Without it the runtime measures itself at its start and chooses."""
    max_queue_tokens: (
        Annotated[int, between(1, 1_000_000_000, "leave it out to take the runtime's default")] | None
    ) = None
    """Tokens that may wait; beyond it requests get 429."""
    max_queue_inputs: (
        Annotated[int, between(1, 100_000_000, "leave it out to take the runtime's default")] | None
    ) = None
    """Inputs that may wait; beyond it requests get 429."""
    max_client_batch_size: (
        Annotated[int, between(1, 1_000_000, "leave it out to bound requests by their bytes only")] | None
    ) = None
    """Inputs that one request may carry."""
    request_timeout_seconds: (
        Annotated[int, between(1, 3600, "leave it out to take the runtime's default")] | None
    ) = None
    """Longest time that a request may wait and run; then it gets 504."""
    auto_truncate: bool | None = None
    """Decides whether over-long inputs are truncated when the request does not say; without it they are."""
    cache_bytes: Annotated[int, between(1, 1_000_000_000_000, "leave it out to keep no vectors")] | None = (
        None
    )
    """Bytes of a cache of vectors in each HTTP worker of a pod; they come on top of the memory that it needs."""
    cache_seconds: (
        Annotated[int, between(1, 31_536_000, "leave it out to take the runtime's default")] | None
    ) = None
    """Time for which a cached vector is kept."""


def _is_request_within_limit(resources: Resources) -> bool:
    limits, requests = resources.limits or {}, resources.requests or {}
    return all(
        (parse_quantity(requests[name]) or 0) <= (parse_quantity(limits[name]) or 0)
        for name in requests.keys() & limits.keys()
    )


class Resources(Model):
    """Compute resources of a replica, as in a pod's container."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=(
                "!has(self.limits) || !has(self.requests) || self.requests.all(name, !(name in self.limits) || "
                "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)"
            ),
            message="requests must not be above limits: lower the one or raise the other",
            check=_is_request_within_limit,
        ),
    )

    limits: Annotated[dict[str, Quantity], Field(max_length=20), QUALIFIED_KEYS] | None = None
    """Upper bounds of what a pod uses."""
    requests: Annotated[dict[str, Quantity], Field(max_length=20), QUALIFIED_KEYS] | None = None
    """Amounts that are reserved for a pod."""


class Autoscaling(Model):
    """Pods by load: a HorizontalPodAutoscaler. Needs a metrics API that knows the metric."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.minReplicas <= self.maxReplicas",
            message="minReplicas must not be above maxReplicas: lower the one or raise the other",
            check=lambda a: a.min_replicas <= a.max_replicas,
        ),
        Rule(
            cel="self.minReplicas > 0 || (has(self.triggers) && size(self.triggers) > 0)",
            message="minReplicas: 0 needs triggers that wake the service (of KEDA): without a pod nothing waits in a "
            "queue; add one, or use 1",
            check=lambda a: a.min_replicas > 0 or bool(a.triggers),
        ),
    )

    min_replicas: Annotated[int, between(0, 1000, "use suspend to stop all pods")] = 1
    """Fewest pods; 0 only where KEDA decides."""
    max_replicas: Annotated[int, between(1, 1000, "give the most pods that may run")]
    """Maximum number of pods."""
    metric: Literal["queueDepth", "queueSeconds", "inFlight"] = "queueDepth"
    """queueDepth: inputs that wait in a pod. queueSeconds: how long they will take. inFlight: requests that a
    pod has not answered yet."""
    target: PositiveQuantity | None = None
    """Value of the metric that a pod should have; without it 64 inputs, 1 second or 16 requests."""
    behavior: RawObject | None = None
    """Speed of scaling, as in `kubectl explain hpa.spec.behavior`; what it leaves out is as by default: up at
    once, to at most three times the pods every 15 s; down by a tenth every minute, and only to what
    was enough for five minutes."""
    metrics: Annotated[tuple[RawObject, ...], Field(max_length=8)] | None = None
    """Further metrics, as in `kubectl explain hpa.spec.metrics`; the one that asks for most pods counts."""
    triggers: Annotated[tuple[RawObject, ...], Field(max_length=8)] | None = None
    """Further triggers where KEDA decides, as in `kubectl explain scaledobject.spec.triggers`, instead of
    metrics."""


class Auth(Model):
    """API keys that requests must carry."""

    secret_ref: SecretKeyRef
    """Key of a Secret that holds one API key, or several separated by commas. Only the pods read it, and again when it
    changes."""


PromptName = Annotated[str, Field(min_length=1, max_length=200)]


class EmbeddingServiceSpec(Model):
    """Model that is served."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.replicas == 1 || !has(self.autoscaling)",
            message="replicas and autoscaling exclude each other: remove replicas, autoscaling.minReplicas counts",
            check=lambda spec: spec.replicas == 1 or spec.autoscaling is None,
        ),
        Rule(
            cel=(
                "!has(self.onnx) || self.onnx.convert != 'Always' || "
                "(has(self.cache) && !self.cache.readOnly)"
            ),
            message="onnx.convert: Always needs a cache that can be written to; add cache, or take IfNeeded",
            check=lambda spec: (
                spec.onnx is None
                or spec.onnx.convert != "Always"
                or (spec.cache is not None and not spec.cache.read_only)
            ),
        ),
        Rule(
            cel=(
                "!has(self.onnx) || !has(self.onnx.outputs) || "
                "(self.onnx.convert != 'Never' && has(self.cache) && !self.cache.readOnly)"
            ),
            message="onnx.outputs are made by conversion into a cache that can be written to; add cache, and take "
            "onnx.convert: IfNeeded",
            check=lambda spec: (
                spec.onnx is None
                or spec.onnx.outputs is None
                or (spec.onnx.convert != "Never" and spec.cache is not None and not spec.cache.read_only)
            ),
        ),
        Rule(
            cel="self.model.precision != 'int8' || has(self.onnx) || !self.hardware.class.startsWith('cpu')",
            message="model.precision: on CPUs int8 is made by conversion; add onnx, for example {precision: int8}",
            check=lambda spec: (
                spec.model.precision != "int8"
                or spec.onnx is not None
                or not spec.hardware.class_.startswith("cpu")
            ),
        ),
        Rule(
            cel="self.model.precision != 'fp8' || !self.hardware.class.startsWith('cpu')",
            message="model.precision: CPUs have no fp8; take int8 with onnx, or an accelerator as hardware.class",
            check=lambda spec: spec.model.precision != "fp8" or not spec.hardware.class_.startswith("cpu"),
        ),
        Rule(
            cel=(
                "!has(self.model.source.s3) || !has(self.model.source.s3.secretRef) || !has(self.pod.env) || "
                f"self.pod.env.all(variable, !(variable.name in {list(S3_VARIABLES)}))"
            ),
            message=f"pod.env: {', '.join(S3_VARIABLES)} come from model.source.s3.secretRef: write them into that "
            "Secret, or remove secretRef",
            check=lambda spec: (
                spec.model.source.s3 is None
                or spec.model.source.s3.secret_ref is None
                or not {variable.name for variable in spec.pod.env or ()} & set(S3_VARIABLES)
            ),
        ),
    )

    model: ModelSpec
    """The model and how its vectors are made."""
    served_model_name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Name that clients pass as `model`. Without it the name of the source is used."""
    prompt_name: PromptName | None = None
    """Prompt used when a request names none: a name in `prompts` or in the model's own prompts."""
    prompts: Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64)] | None = None
    """Prompts by name, beside the model's own; the same name replaces the model's."""
    hardware: Hardware = Hardware()
    """Hardware that the pods run on."""
    runtime_image: (
        Annotated[
            str,
            Field(max_length=1000),
            matches(r"^[^ ]+[:@][^ /]+$", "must name an image with a tag or digest, and no blanks"),
        ]
        | None
    ) = None
    """Image of the pods with a tag or digest, in place of the operator's own: of one of its repositories, or one that
    the chart's runtime.allowedImages names. An upgrade of the operator does not change it."""
    engine: Literal["auto", "onnx", "torch"] = "auto"
    """Engine that runs the model. `auto` takes what the hardware class says, else what can run the model."""
    onnx: OnnxConversion | None = None
    """Conversion into an ONNX artifact; without it the graph is written at each start, in float32."""
    cache: Cache | None = None
    """Cache of models, so that only one pod ever fetches; without it each pod fetches for itself."""
    batching: Batching | None = None
    """Token-budget batching and its bounds."""
    replicas: Annotated[int, between(0, 1000, "0 stops serving and keeps the rest")] = 1
    """Number of pods. With autoscaling it says nothing."""
    autoscaling: Autoscaling | None = None
    """Pods by load, instead of `replicas`."""
    rollout: RolloutSettings = RolloutSettings()
    """Change of the service from one vector space to another."""
    auth: Auth | None = None
    """API keys that requests must carry; without it none is asked for."""
    api: ApiSettings = ApiSettings()
    """Settings of the HTTP and gRPC API of the pods."""
    service: ServiceSettings = ServiceSettings()
    """The Service that clients call."""
    network_policy: NetworkPolicySettings = NetworkPolicySettings()
    """Peers that may reach the pods, and destinations that the pods may reach."""
    monitoring: Monitoring | None = None
    """Collection of metrics."""
    resources: Resources | None = None
    """Compute resources of a replica."""
    pod: PodSettings = PodSettings()
    """Additions to the pods that the operator makes."""
    jobs: JobSettings = JobSettings()
    """Values for the pods of Jobs that replace those of `pod`."""
    suspend: bool = False
    """Stops all pods and keeps everything else."""


_MAX_NAME_LENGTH = 45  # children carry suffixes, and the pods of a Deployment two more
_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_RULE = Rule(
    cel=f"self.metadata.name.size() <= {_MAX_NAME_LENGTH} && self.metadata.name.matches('{_NAME}')",
    message=(
        f"metadata.name must have at most {_MAX_NAME_LENGTH} characters, start with a letter and contain only "
        "lower-case letters, digits and '-': a Service of that name is made, other children carry suffixes"
    ),
    check=lambda name: len(name) <= _MAX_NAME_LENGTH and re.match(_NAME, name) is not None,
)
