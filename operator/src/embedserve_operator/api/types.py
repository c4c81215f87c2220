"""EmbeddingService as types: the source of the CRD, of its validation and of `kubectl explain`.

Docstrings are what users read; write them for users.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from embedserve_operator.api.rules import CEL_KEY, Rule, between
from embedserve_operator.hardware import CLASSES

GROUP = "embedserve.dev"
VERSION = "v1alpha1"
KIND = "EmbeddingService"
PLURAL = "embeddingservices"
API_VERSION = f"{GROUP}/{VERSION}"

QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|"
    r"([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


class Model(BaseModel):
    """Base: camelCase on the wire, frozen, unknown fields refused, `rules` enforced."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _obey_rules(self) -> Self:
        for rule in self.rules:
            rule.validate(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        described = handler(core_schema)
        if cls.rules:
            target = handler.resolve_ref_schema(described)
            target[CEL_KEY] = [rule.as_json() for rule in cls.rules]
        return described


def _matches(pattern: str, message: str) -> Rule:
    compiled = re.compile(pattern)
    escaped = pattern.replace("\\", "\\\\")
    return Rule(
        cel=f"self.matches('{escaped}')", message=message, check=lambda v: compiled.search(v) is not None
    )


def _is_quantity_not_negative(value: int | str) -> bool:
    if isinstance(value, int):
        return value >= 0
    return re.match(QUANTITY, value) is not None and not value.startswith("-")


Quantity = Annotated[
    int | Annotated[str, Field(max_length=40)],
    Rule(
        cel="type(self) == int ? self >= 0 : isQuantity(self) && quantity(self).compareTo(quantity('0')) >= 0",
        message="must be a Kubernetes quantity of zero or more, such as 500m, 2 or 4Gi",
        check=_is_quantity_not_negative,
    ),
]
ObjectName = Annotated[
    str,
    Field(max_length=253),
    _matches(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        "must be the name of an object in the same namespace: lower-case letters, digits, '-' and '.'",
    ),
]


class SecretKeyRef(Model):
    """One key of a Secret in the namespace of the resource."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[
        str,
        Field(max_length=253),
        _matches(r"^[-._a-zA-Z0-9]+$", "must be a key of the Secret: letters, digits, '-', '_' and '.'"),
    ]
    """Key inside the Secret."""


class HuggingFaceSource(Model):
    """A repository of the Hugging Face Hub, or of a server that speaks its protocol."""

    repo: Annotated[
        str,
        Field(max_length=200),
        _matches(
            r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
            "repo must be OWNER/NAME as on the Hub, for example sentence-transformers/all-MiniLM-L6-v2",
        ),
    ]
    """Repository as OWNER/NAME, for example sentence-transformers/all-MiniLM-L6-v2."""
    revision: Annotated[
        str,
        Field(max_length=200),
        _matches(
            r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", "revision must be a commit, a tag or a branch, such as main"
        ),
    ] = "main"
    """Commit, tag or branch. A commit keeps the vectors the same for ever; a branch may move between two pod
    starts."""
    token_secret_ref: SecretKeyRef | None = None
    """Access token for private and gated repositories. Only the pods read it, the operator never does."""


class VolumeSource(Model):
    """A model folder on a PersistentVolumeClaim, mounted read-only."""

    claim_name: ObjectName
    """Name of a PersistentVolumeClaim in the namespace of the resource."""
    path: Annotated[
        str,
        Field(max_length=1024),
        Rule(
            cel="!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
            message="path must be relative to the volume's root and must not contain '..'",
            check=lambda v: not v.startswith("/") and ".." not in v.split("/"),
        ),
    ] = ""
    """Folder inside the volume, relative to its root; empty for the root itself."""


def _exactly_one_source(source: ModelSource) -> bool:
    return (source.hugging_face is None) != (source.volume is None)


class ModelSource(Model):
    """Where the model comes from: exactly one of the fields."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="[has(self.huggingFace), has(self.volume)].filter(given, given).size() == 1",
            message="give exactly one source: either huggingFace or volume; remove the others",
            check=_exactly_one_source,
        ),
    )

    hugging_face: HuggingFaceSource | None = None
    """A repository of the Hugging Face Hub."""
    volume: VolumeSource | None = None
    """A folder on a PersistentVolumeClaim."""


class ModelSpec(Model):
    """The model and how its vectors are made."""

    source: ModelSource
    """Where the model comes from: exactly one of the fields."""
    pooling: Literal["auto", "cls", "mean", "max", "last"] = "auto"
    """How token vectors become one vector. `auto` takes what the model's own files say."""
    dimensions: (
        Annotated[int, between(1, 65536, "leave it out to keep all dimensions of the model")] | None
    ) = None
    """Cut of every vector for Matryoshka models. Without it all dimensions are kept."""
    max_length: Annotated[int, between(1, 1_000_000, "leave it out to take the model's own limit")] | None = (
        None
    )
    """Tokens that an input may have. Without it the model's own limit holds."""


def _known_class(name: str) -> str:
    if name not in CLASSES:
        raise ValueError(f"no such hardware class; there are: {', '.join(sorted(CLASSES))}")
    return name


class Hardware(Model):
    """What the pods run on."""

    class_: Annotated[str, Field(alias="class"), AfterValidator(_known_class)] = "cpu"
    """Hardware class."""


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


class Resources(Model):
    """Compute resources of a replica, as in a pod's container."""

    limits: Annotated[dict[str, Quantity], Field(max_length=20)] | None = None
    """Upper bounds."""
    requests: Annotated[dict[str, Quantity], Field(max_length=20)] | None = None
    """What is reserved."""


PromptName = Annotated[str, Field(min_length=1, max_length=200)]


class EmbeddingServiceSpec(Model):
    """What is to be served."""

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
    batching: Batching | None = None
    """Token-budget batching and its bounds."""
    replicas: Annotated[int, between(0, 1000, "0 stops serving and keeps the rest")] = 1
    """Number of pods."""
    resources: Resources | None = None
    """Compute resources of a replica."""
    suspend: bool = False
    """Stops all pods and keeps everything else."""


class Condition(Model):
    """One statement about the service."""

    type: Annotated[str, Field(max_length=316)]
    """Ready, Reconciling or Stalled; the last two exist only while they are true."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """Cause as one word, for programs."""
    message: Annotated[str, Field(max_length=32768)]
    """Cause in words, for people."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When the status last changed."""
    observed_generation: int | None = None
    """Generation of the resource that the statement is about."""


class Endpoint(Model):
    """Where the service answers."""

    url: str
    """Base URL inside the cluster."""


class VectorSpace(Model):
    """Which vectors are served. Vectors of different spaces must never be compared."""

    id: str
    """Identity: the same for all ways to make the same vectors, different otherwise."""
    dimensions: int
    """Length of a vector."""


class ServedModel(Model):
    """The model that is served now."""

    source: str
    """Repository or volume folder that it came from."""
    revision: str | None = None
    """Commit that the source resolved to."""
    digest: str | None = None
    """Digest of the model's files."""
    size_bytes: int | None = None
    """Size of the model's files."""


class EmbeddingServiceStatus(Model):
    """What is served now, and what keeps it from being what the spec asks for."""

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
    """Where the service answers."""
    vector_space: VectorSpace | None = None
    """Which vectors are served."""
    model: ServedModel | None = None
    """The model that is served now."""


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
