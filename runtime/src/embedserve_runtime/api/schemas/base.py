"""Provides what the models of all dialects share: their base class, common fields, and their serialization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Tag

from embedserve_runtime.api.input_types import InputTypeName
from embedserve_runtime.api.schemas.compatibility import supported_for

T = TypeVar("T")


class ApiModel(BaseModel):
    """Base of all bodies: strict and frozen. Fields that a model does not name are ignored.

    Every field that a request may leave out may be null and has null as its default, since clients write null for what
    is not set.
    """

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        protected_namespaces=(),
        # Texts do not repeat, so a cache of them would only cost time.
        cache_strings="keys",
    )


@dataclass(frozen=True)
class ExpectedInput:
    """Metadata of a field with several types: how errors describe its value and its items."""

    value: str
    item: str = ""


def is_none(value: object) -> bool:
    """Return whether a member of an answer is left out instead of being null; for `exclude_if`."""
    return value is None


def to_json(model: BaseModel) -> bytes:
    """Serialize a model in the order of its fields, without blanks; `exclude_if` says which fields are left out."""
    return model.__pydantic_serializer__.to_json(model, by_alias=True)


# A list that is refused at its first bad item: a body may have millions of them.
FailFastList = Annotated[list[T], Field(fail_fast=True)]
# Tags a member of a union, so that paths in errors do not name it.
UNION_MEMBER = Tag("")

# Members are tried from left to right, the list first: a text is told from a list at once, while the error for a list
# that is not a text would hold a copy of it.
Inputs = Annotated[
    Annotated[
        FailFastList[
            Annotated[
                Annotated[str, UNION_MEMBER]
                | Annotated[FailFastList[int], UNION_MEMBER]
                | Annotated[int, UNION_MEMBER],
                Field(union_mode="left_to_right"),
            ]
        ],
        UNION_MEMBER,
    ]
    | Annotated[str, UNION_MEMBER],
    ExpectedInput(
        "a text, an array of token ids, or a list of texts and arrays of token ids",
        "a text or an array of token ids",
    ),
    Field(
        union_mode="left_to_right",
        description="One text, one array of token ids, or a list of texts and arrays of token ids. "
        "Token ids are used as they are: no special tokens and no prompt are added.",
        examples=[["What is a vector?", "A list of numbers."]],
    ),
]
Positive = Annotated[int, Field(ge=1)]
EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
Dimensions = Annotated[
    Positive | None,
    Field(
        description="Keep only the first dimensions (Matryoshka), before normalizing; null keeps all.",
        examples=[256],
    ),
]
Truncate = Annotated[
    bool | None,
    Field(
        description="Cut inputs that are longer than the model takes; null takes the server's setting.",
        examples=[True],
    ),
]
Overflow = Annotated[
    Literal["truncate", "error", "chunk-mean", "chunk"] | None,
    Field(
        description="What becomes of inputs that are longer than the model takes. chunk: each is split into parts that "
        "fit, with a vector each. chunk-mean: the mean of these vectors, weighted by the parts' tokens. null: as "
        "`truncate` says.",
        examples=["chunk-mean"],
    ),
]
Direction = Annotated[
    Literal["Left", "left", "Right", "right"] | None,
    Field(description="The side that is cut off; null means Right.", examples=["Right"]),
]
ModelName = Annotated[
    str | None,
    Field(
        description="Any name: one model is served. NAME:query says what the inputs are. NAME@vs2-... insists on that "
        "vector space; another one gives 409.",
        examples=["all-minilm-l6-v2"],
    ),
]
PromptName = Annotated[
    str | None,
    Field(
        description="Name of the prompt put before each text; null takes the default prompt, if any.",
        examples=["query"],
    ),
]
InputTypeField = Annotated[
    InputTypeName | None,
    Field(
        description="What the inputs are: chooses the prompt, and the route of queries of a model that has one.",
        examples=["query"],
    ),
]
RawScores = Annotated[
    bool | None,
    Field(
        description="Scores as the model gives them, without sigmoid or softmax; null means false.",
        examples=[False],
    ),
]
Query = Annotated[str, Field(description="What is asked.", examples=["What is a vector?"])]


class RequestBody(ApiModel):
    """Base of the bodies of requests.

    The fields that it does not name are kept until `known_fields` has looked at them: those that other routes have are
    refused, others are ignored, as TEI does. paths: the routes that take the body.
    """

    model_config = ConfigDict(extra="allow")

    paths: ClassVar[tuple[str, ...]] = ()

    model: Annotated[ModelName, supported_for("OpenAI", "Cohere", "NIM")] = None


class TypedInputs(RequestBody):
    """The fields that say what the inputs are, on every route that makes vectors of texts."""

    input_type: Annotated[InputTypeField, supported_for("Cohere", "NIM", "Voyage")] = None
    task: Annotated[
        InputTypeName | None,
        supported_for("Jina"),
        Field(description="The same as `input_type`.", examples=["retrieval.query"]),
    ] = None
    prompt_name: Annotated[PromptName, supported_for("TEI")] = None
    prompt: Annotated[
        str | None,
        supported_for("Embedserve"),
        Field(description="Text put before each input, instead of a prompt by name.", examples=["query: "]),
    ] = None


# Members of answers.
Index = Annotated[int, Field(description="Place in the request, from 0.", examples=[0])]
ModelId = Annotated[
    str, Field(description="Name under which the model is served.", examples=["all-minilm-l6-v2"])
]
VectorSpace = Annotated[
    str,
    Field(
        description="Identity of the vector space; vectors of different spaces cannot be compared.",
        examples=["vs2-0123456789abcdef0123"],
    ),
]
RequestId = Annotated[
    str, Field(description="Id of the request.", examples=["4c8f0f6e1b7a4c0e9d2f3a5b6c7d8e9f"])
]
ErrorMessage = Annotated[
    str,
    Field(
        description="What was wrong, and what to do about it.",
        examples=["`dimensions` must be at least 1 (got 0)"],
    ),
]
Reason = Annotated[str, Field(description="The precise reason.", examples=["WrongShape"])]
