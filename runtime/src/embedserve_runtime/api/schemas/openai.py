"""Bodies of OpenAI's `POST /v1/embeddings` and `GET /v1/models`, and its errors."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from embedserve_runtime.api.schemas.base import (
    UNION_MEMBER,
    ApiModel,
    Dimensions,
    EmbeddingType,
    ErrorMessage,
    ExpectedInput,
    FailFastList,
    Index,
    Inputs,
    ModelId,
    Overflow,
    Positive,
    Reason,
    TypedInputs,
    is_none,
)
from embedserve_runtime.api.schemas.compatibility import ignored_for, refused_for, supported_for

OneEmbeddingType = Annotated[FailFastList[EmbeddingType], Field(min_length=1, max_length=1)]


class EmbeddingRequest(TypedInputs):
    """Body of `POST /v1/embeddings`: OpenAI's fields, and those of others whose clients call this path."""

    paths = ("/v1/embeddings",)

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = Field(
        None,
        description="How vectors are written; base64: little-endian bytes of the numbers. null means float.",
        examples=["float"],
    )
    dimensions: Dimensions = None
    user: Annotated[str | None, ignored_for("OpenAI")] = Field(
        None, description="Accepted for compatibility; not used.", examples=["user-1234"]
    )
    output_dimension: Annotated[Positive | None, supported_for("Voyage", "Mistral", "Cohere")] = Field(
        None, description="The same as `dimensions`.", examples=[256]
    )
    embedding_type: Annotated[
        Annotated[EmbeddingType, UNION_MEMBER] | Annotated[OneEmbeddingType, UNION_MEMBER] | None,
        supported_for("Jina", "NIM"),
        ExpectedInput(f"one of {', '.join(get_args(EmbeddingType))}, or a list of one of them"),
    ] = Field(
        None,
        description="The type of the vectors' numbers, or base64 for float32 as base64; null means float.",
        examples=["float"],
    )
    embedding_types: Annotated[OneEmbeddingType | None, supported_for("Cohere")] = Field(
        None, description="The same as `embedding_type`, in a list of one.", examples=[["float"]]
    )
    output_dtype: Annotated[EmbeddingType | None, supported_for("Voyage", "Mistral")] = Field(
        None, description="The same as `embedding_type`.", examples=["float"]
    )
    truncate: Annotated[
        Annotated[bool, UNION_MEMBER] | Annotated[Literal["NONE", "START", "END"], UNION_MEMBER] | None,
        supported_for("Jina", "NIM"),
        ExpectedInput("true, false, 'NONE', 'START' or 'END'"),
    ] = Field(
        None,
        description="Cut inputs that are longer than the model takes: true or false, or the side that is cut off, "
        "START or END; NONE refuses instead. null takes the server's setting.",
        examples=["END"],
    )
    truncation: Annotated[bool | None, supported_for("Voyage")] = Field(
        None, description="The same as `truncate`.", examples=[True]
    )
    truncate_prompt_tokens: Annotated[int | None, supported_for("vLLM")] = Field(
        None,
        ge=-1,
        description="Cut inputs to so many tokens, special tokens included; -1 for what the model takes.",
        examples=[512],
    )
    overflow: Annotated[Overflow, supported_for("Embedserve")] = None
    late_chunking: Annotated[bool | None, supported_for("Jina")] = Field(
        None,
        description="Read all inputs as one text, and give each the mean of its tokens' states, which have seen the "
        "others; null means false.",
        examples=[True],
    )
    normalized: Annotated[bool | None, supported_for("Jina")] = Field(
        None, description="Scale each vector to length 1; null means true.", examples=[True]
    )
    normalize: Annotated[bool | None, supported_for("vLLM")] = Field(
        None, description="The same as `normalized`.", examples=[True]
    )
    return_multivector: Annotated[
        Literal[False] | None,
        refused_for("Jina"),
        ExpectedInput("false: one vector is made of each input; `/v1/encode` makes one of each token"),
    ] = Field(None, description="Refused unless false.", examples=[False])
    add_special_tokens: Annotated[
        Literal[True] | None,
        refused_for("vLLM"),
        ExpectedInput("true: the model expects its special tokens; send token ids to leave them out"),
    ] = Field(None, description="Refused unless true.", examples=[True])
    modality: Annotated[
        Annotated[Literal["text"], UNION_MEMBER]
        | Annotated[FailFastList[Literal["text"]], UNION_MEMBER]
        | None,
        refused_for("NIM"),
        ExpectedInput("'text', for all inputs or for each: the model takes text", "'text'"),
    ] = Field(None, description="Refused unless text.", examples=["text"])
    messages: Annotated[None, refused_for("vLLM"), ExpectedInput("left out: send texts as `input`")] = Field(
        None, description="Refused.", examples=[None]
    )


class Usage(ApiModel):
    """Tokens after truncation, with prompt and special tokens."""

    prompt_tokens: int = Field(description="Tokens of all inputs.", examples=[6])
    total_tokens: int = Field(description="The same number.", examples=[6])


class EmbeddingItem(ApiModel):
    """One vector: a list of numbers, or base64 of little-endian float32 bytes."""

    object: Literal["embedding"] = Field(description="Always `embedding`.", examples=["embedding"])
    index: Index
    embedding: list[float] | str = Field(
        description="The vector, as `encoding_format` asks for it.", examples=[[0.6, 0.8]]
    )
    chunks: int | None = Field(
        None,
        exclude_if=is_none,
        description="Comes with `overflow: chunk-mean`: of how many parts it is the mean.",
        examples=[3],
    )
    chunk: int | None = Field(
        None,
        exclude_if=is_none,
        description="Comes with `overflow: chunk`: the number of the part of the input, from 0.",
        examples=[0],
    )
    start: int | None = Field(
        None, exclude_if=is_none, description="Code point at which the part begins.", examples=[0]
    )
    end: int | None = Field(
        None, exclude_if=is_none, description="Code point before which the part ends.", examples=[1800]
    )


class EmbeddingResponse(ApiModel):
    """Answer of `POST /v1/embeddings`."""

    object: Literal["list"] = Field(description="Always `list`.", examples=["list"])
    data: list[EmbeddingItem] = Field(
        description="A vector for each input, in their order.",
        examples=[[{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}]],
    )
    model: ModelId
    usage: Usage = Field(
        description="How many tokens there were.", examples=[{"prompt_tokens": 6, "total_tokens": 6}]
    )


class OpenAIErrorDetail(ApiModel):
    """Details of an error as OpenAI gives them; `code` is the precise reason."""

    message: ErrorMessage
    type: str = Field(description="Kind of the error, in OpenAI's words.", examples=["invalid_request_error"])
    param: str | None = Field(
        description="The field that is wrong; null where the message names none.", examples=["dimensions"]
    )
    code: Reason


class OpenAIErrorResponse(ApiModel):
    """An error as OpenAI writes it, and beside it as TEI writes it on this route."""

    error: OpenAIErrorDetail = Field(
        description="The error as OpenAI writes it.",
        examples=[
            {
                "message": "`dimensions` must be at least 1 (got 0)",
                "type": "invalid_request_error",
                "param": "dimensions",
                "code": "WrongShape",
            }
        ],
    )
    message: ErrorMessage
    code: int = Field(description="Status of the answer.", examples=[422])
    type: str = Field(
        description="Kind of the error, in the words of Text Embeddings Inference.", examples=["Validation"]
    )


class OpenAIModel(ApiModel):
    """A model that is served."""

    id: ModelId
    created: int = Field(
        description="When this process started, in seconds since 1970.", examples=[1767225600]
    )
    object: Literal["model"] = Field("model", description="Always `model`.", examples=["model"])
    owned_by: str = Field("embedserve", description="Always `embedserve`.", examples=["embedserve"])


class OpenAIModelList(ApiModel):
    """Answer of `GET /v1/models`: one process serves one model."""

    data: list[OpenAIModel] = Field(
        description="The model that is served.",
        examples=[
            [
                {
                    "id": "all-minilm-l6-v2",
                    "created": 1767225600,
                    "object": "model",
                    "owned_by": "embedserve",
                }
            ]
        ],
    )
    object: Literal["list"] = Field("list", description="Always `list`.", examples=["list"])
