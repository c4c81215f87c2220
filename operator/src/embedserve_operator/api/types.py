"""EmbeddingService as types: the source of the CRD, of its validation and of `kubectl explain`.

Docstrings are what users read; write them for users.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from embedserve_operator.api.base import LabelName, Model, ObjectName, PassedOn, PositiveQuantity, Quantity
from embedserve_operator.api.network import Monitoring, NetworkPolicySettings, ServiceSettings
from embedserve_operator.api.pods import PodSettings
from embedserve_operator.api.rules import Rule, between, exactly_one, matches

GROUP = "embedserve.dev"
VERSION = "v1alpha1"
KIND = "EmbeddingService"
PLURAL = "embeddingservices"
API_VERSION = f"{GROUP}/{VERSION}"


class SecretKeyRef(Model):
    """One key of a Secret in the namespace of the resource."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[
        str,
        Field(max_length=253),
        matches(r"^[-._a-zA-Z0-9]+$", "must be a key of the Secret: letters, digits, '-', '_' and '.'"),
    ]
    """Key inside the Secret."""


class HuggingFaceSource(Model):
    """A repository of the Hugging Face Hub, or of a server that speaks its protocol."""

    repo: Annotated[
        str,
        Field(max_length=200),
        matches(
            r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
            "repo must be OWNER/NAME as on the Hub, for example sentence-transformers/all-MiniLM-L6-v2",
        ),
    ]
    """Repository as OWNER/NAME, for example sentence-transformers/all-MiniLM-L6-v2."""
    revision: Annotated[
        str,
        Field(max_length=200),
        matches(
            r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", "revision must be a commit, a tag or a branch, such as main"
        ),
    ] = "main"
    """Commit, tag or branch. A commit keeps the vectors the same for ever; a branch may move between two pod
    starts."""
    token_secret_ref: SecretKeyRef | None = None
    """Access token for private and gated repositories. Only the pods read it, the operator never does."""


ModelPath = Annotated[
    str,
    Field(max_length=1024),
    Rule(
        cel="!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
        message="path must be relative to the volume's root and must not contain '..'",
        check=lambda v: not v.startswith("/") and ".." not in v.split("/"),
    ),
]


class VolumeSource(Model):
    """A model folder on a PersistentVolumeClaim, mounted read-only."""

    claim_name: ObjectName
    """Name of a PersistentVolumeClaim in the namespace of the resource."""
    path: ModelPath = ""
    """Folder inside the volume, relative to its root; empty for the root itself."""


class ImageSource(Model):
    """A model folder inside an OCI image, mounted read-only by the kubelet (an image volume).

    Needs Kubernetes 1.33 or newer and a container runtime that can do it.
    """

    reference: Annotated[
        str,
        Field(max_length=1000),
        matches(r"^[^ ]+[:@][^ /]+$", "reference must name an image with a tag or digest, and no blanks"),
    ]
    """Image with tag or digest; a digest keeps the vectors the same for ever."""
    path: ModelPath = ""
    """Folder inside the image, relative to its root; empty for the root itself."""


class ModelSource(Model):
    """Where the model comes from: exactly one of the fields."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one(
            ("huggingFace", "volume", "image"),
            ("hugging_face", "volume", "image"),
            "give exactly one source: one of huggingFace, volume and image; remove the others",
        ),
    )

    hugging_face: HuggingFaceSource | None = None
    """A repository of the Hugging Face Hub."""
    volume: VolumeSource | None = None
    """A folder on a PersistentVolumeClaim."""
    image: ImageSource | None = None
    """A folder inside an OCI image."""


class ModelSpec(Model):
    """The model and how its vectors are made."""

    source: ModelSource
    """Where the model comes from: exactly one of the fields."""
    task: Literal["auto", "embed", "rerank", "classify", "sparse"] = "auto"
    """What the model gives. `auto` takes what the model's own files say."""
    pooling: Literal["auto", "cls", "mean", "mean_sqrt", "weighted_mean", "max", "last"] = "auto"
    """How token vectors become one vector. `auto` takes what the model's own files say."""
    dimensions: (
        Annotated[int, between(1, 65536, "leave it out to keep all dimensions of the model")] | None
    ) = None
    """Cut of every vector for Matryoshka models. Without it all dimensions are kept."""
    max_length: Annotated[int, between(1, 1_000_000, "leave it out to take the model's own limit")] | None = (
        None
    )
    """Tokens that an input may have. Without it the model's own limit holds."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of weights and products. `auto` takes what the hardware class says, else float32 on CPUs."""


class Hardware(Model):
    """What the pods run on."""

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
    """Whether over-long inputs are cut when the request does not say; without it they are."""


class Resources(Model):
    """Compute resources of a replica, as in a pod's container."""

    limits: Annotated[dict[str, Quantity], Field(max_length=20)] | None = None
    """Upper bounds."""
    requests: Annotated[dict[str, Quantity], Field(max_length=20)] | None = None
    """What is reserved."""


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
    """Most pods."""
    metric: Literal["queueDepth", "queueSeconds", "inFlight"] = "queueDepth"
    """queueDepth: inputs that wait in a pod. queueSeconds: how long they will take. inFlight: requests that a
    pod has not answered yet."""
    target: PositiveQuantity | None = None
    """Value of the metric that a pod should have; without it 64 inputs, 1 second or 16 requests."""
    behavior: PassedOn | None = None
    """Speed of scaling, as in `kubectl explain hpa.spec.behavior`; what it leaves out is as by default: up at
    once, to at most three times the pods every 15 s; down by a tenth every minute, and only to what
    was enough for five minutes."""
    metrics: Annotated[tuple[PassedOn, ...], Field(max_length=8)] | None = None
    """Further metrics, as in `kubectl explain hpa.spec.metrics`; the one that asks for most pods counts."""
    triggers: Annotated[tuple[PassedOn, ...], Field(max_length=8)] | None = None
    """Where KEDA decides: further triggers, as in `kubectl explain scaledobject.spec.triggers`, in the place of
    metrics."""


class Auth(Model):
    """API keys that requests must carry."""

    secret_ref: SecretKeyRef
    """Key of a Secret that holds one API key, or several separated by commas. Only the pods read it."""


PromptName = Annotated[str, Field(min_length=1, max_length=200)]


class EmbeddingServiceSpec(Model):
    """What is to be served."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(has(self.replicas) && has(self.autoscaling))",
            message="replicas and autoscaling exclude each other: remove replicas, autoscaling.minReplicas counts",
            check=lambda spec: spec.replicas is None or spec.autoscaling is None,
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
    """What the pods run on."""
    engine: Literal["auto", "onnx", "torch"] = "auto"
    """How the model is run. `auto` takes what the hardware class says, else what can run the model."""
    batching: Batching | None = None
    """Token-budget batching and its bounds."""
    replicas: Annotated[int, between(0, 1000, "0 stops serving and keeps the rest")] | None = None
    """Number of pods; 1 when neither it nor autoscaling is given."""
    autoscaling: Autoscaling | None = None
    """Pods by load, instead of `replicas`."""
    auth: Auth | None = None
    """API keys that requests must carry; without it none is asked for."""
    service: ServiceSettings = ServiceSettings()
    """The Service that clients call."""
    network_policy: NetworkPolicySettings = NetworkPolicySettings()
    """Who may reach the pods, and what they may reach."""
    monitoring: Monitoring | None = None
    """How metrics are collected."""
    resources: Resources | None = None
    """Compute resources of a replica."""
    pod: PodSettings = PodSettings()
    """What the pods get beside what the operator decides."""
    suspend: bool = False
    """Stops all pods and keeps everything else."""


_LONGEST_NAME = 45  # children carry suffixes, and the pods of a Deployment two more
_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_RULE = Rule(
    cel=f"self.metadata.name.size() <= {_LONGEST_NAME} && self.metadata.name.matches('{_NAME}')",
    message=(
        f"metadata.name must have at most {_LONGEST_NAME} characters, start with a letter and contain only "
        "lower-case letters, digits and '-': a Service of that name is made, other children carry suffixes"
    ),
    check=lambda name: len(name) <= _LONGEST_NAME and re.match(_NAME, name) is not None,
)
