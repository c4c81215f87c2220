"""Request and response bodies as types: they decode the JSON, and the OpenAPI document is made from them.

Fields that are not named here are ignored, as TEI does: clients send each other's options along.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from embedserve_runtime.api.asgi import Exchange
from embedserve_runtime.api.errors import MalformedBody, UnsupportedMediaType, WrongShape
from embedserve_runtime.tokenizing import Input

Inputs = Annotated[
    str | list[str | int | list[int]],
    Meta(
        description="One text, one array of token ids, or a list of texts and arrays of token ids. "
        "Token ids are used as they are: no special tokens and no prompt are added."
    ),
]

Dimensions = Annotated[
    Annotated[int, Meta(ge=1)] | None,
    Meta(description="Keep only the first dimensions (Matryoshka), before normalising."),
]


Truncate = Annotated[
    bool | None,
    Meta(description="Cut inputs that are longer than the model takes; null takes the server's setting."),
]
Direction = Annotated[
    Literal["Left", "left", "Right", "right"], Meta(description="The side that is cut off.")
]
ModelName = Annotated[
    str | None,
    Meta(
        description="Any name: one model is served. NAME@vs1-... insists on that vector space; another one gives 409."
    ),
]
PromptName = Annotated[
    str | None,
    Meta(description="Name of the prompt put before each text; null takes the default prompt, if any."),
]


class EmbedBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /embed`."""

    inputs: Inputs
    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    prompt_name: PromptName = None
    normalize: Annotated[bool | None, Meta(description="Scale each vector to length 1; null means true.")] = (
        True
    )
    dimensions: Dimensions = None


class EmbeddingsBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /v1/embeddings`."""

    input: Inputs
    model: ModelName = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None, Meta(description="base64: little-endian float32 bytes.")
    ] = None
    dimensions: Dimensions = None
    user: Annotated[str | None, Meta(description="Accepted for compatibility; not used.")] = None


class Usage(Struct, frozen=True):
    """Tokens after truncation, with prompt and special tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(Struct, frozen=True):
    """One vector: a list of numbers, or base64 of little-endian float32 bytes."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(Struct, frozen=True):
    """Answer of `POST /v1/embeddings`."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: Usage


class ErrorBody(Struct, frozen=True):
    """An error as Text Embeddings Inference writes it."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class OpenAIErrorDetail(Struct, frozen=True):
    """What an OpenAI error holds; `code` is the precise reason."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIErrorBody(Struct, frozen=True):
    """An error as OpenAI writes it, and beside it as TEI writes it on this route."""

    error: OpenAIErrorDetail
    message: str
    code: int
    type: str


class MessageBody(Struct, frozen=True):
    """An error of the Cohere and native routes; `code` is the precise reason, `id` that of the request."""

    message: str
    code: str
    id: str


class OpenAIModel(Struct, frozen=True):
    """A model that is served; `created` is when this process started."""

    id: str
    created: int
    object: Literal["model"] = "model"
    owned_by: str = "embedserve"


class OpenAIModelList(Struct, frozen=True):
    """Answer of `GET /v1/models`: one process serves one model."""

    data: list[OpenAIModel]
    object: Literal["list"] = "list"


class EmbeddingModelType(Struct, frozen=True):
    """How hidden states are pooled."""

    pooling: str


class LabelsModelType(Struct, frozen=True):
    """The labels of a classifier, both ways."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class ModelType(Struct, frozen=True, omit_defaults=True):
    """The kind of model, as TEI tags it: exactly one of these."""

    embedding: EmbeddingModelType | None = None
    classifier: LabelsModelType | None = None
    reranker: LabelsModelType | None = None


class EngineBody(Struct, frozen=True):
    """What runs the model. parity: least cosine of vectors in 8 bit to those in 16, where they are in 8. threads: that
    compute, where the engine shares the cores."""

    kind: str
    devices: list[str]
    precision: str
    attention: str | None
    parity: float | None
    threads: int | None


class InfoBody(Struct, frozen=True):
    """Answer of `GET /info`: TEI's keys, then our own. http_workers: processes that speak HTTP."""

    model_id: str
    model_sha: str | None
    model_dtype: str
    served_model_name: str
    model_type: ModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    vector_space: str
    dimensions: int
    full_dimensions: int
    normalize: bool
    prompts: list[str]
    default_prompt: str | None
    engine: EngineBody
    http_workers: int


class ProbeBody(Struct, frozen=True):
    """Answer of the probes: a phase, and a sentence about it."""

    status: str
    message: str


B = TypeVar("B", bound=Struct)


class BodyDecoder(Generic[B]):
    """JSON to one of the types above."""

    def __init__(self, body_type: type[B]) -> None:
        self._decoder: msgspec.json.Decoder[B] = msgspec.json.Decoder(body_type)

    def __call__(self, exchange: Exchange) -> B:
        """Raises UnsupportedMediaType, MalformedBody, WrongShape. A missing content type is taken as JSON."""
        content_type = exchange.headers.get(b"content-type", b"application/json")
        if not content_type.startswith(b"application/json") and not _is_json(content_type):
            shown = content_type.decode("latin-1")
            raise UnsupportedMediaType(f"content type {shown!r} is not taken; send application/json")
        try:
            return self._decoder.decode(exchange.body)
        except msgspec.ValidationError as error:
            raise WrongShape(str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedBody(f"the body is not valid JSON: {error}") from error


def inputs_of(value: str | list[str | int | list[int]], field: str) -> list[Input]:
    """The union as a list of inputs: a flat list of numbers is one input, as in TEI and OpenAI."""
    if isinstance(value, str):
        return [value]
    if not value:
        return []
    numbers = sum(isinstance(item, int) for item in value)
    if numbers == len(value):
        return [value]  # type: ignore[list-item]  # all of them are int, which the checker cannot see
    if numbers:
        raise WrongShape(
            f"`{field}` mixes numbers with texts; token ids of a batch go into arrays of their own"
        )
    return value  # type: ignore[return-value]  # none of them is int


def _is_json(content_type: bytes) -> bool:
    media_type = content_type.split(b";", 1)[0].strip().lower()
    return media_type == b"application/json" or (
        media_type.startswith(b"application/") and media_type.endswith(b"+json")
    )
