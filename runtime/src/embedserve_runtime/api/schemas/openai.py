"""Bodies of OpenAI's `POST /v1/embeddings` and `GET /v1/models`, and its errors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from embedserve_runtime.api.schemas.base import (
    ApiModel,
    Dimensions,
    ErrorMessage,
    Index,
    Inputs,
    ModelId,
    ModelName,
    Reason,
)


class EmbeddingsBody(ApiModel):
    """Body of `POST /v1/embeddings`."""

    input: Inputs
    model: ModelName = None
    encoding_format: Literal["float", "base64"] | None = Field(
        None,
        description="How vectors are written; base64: little-endian float32 bytes. null means float.",
        examples=["float"],
    )
    dimensions: Dimensions = None
    user: str | None = Field(
        None, description="Accepted for compatibility; not used.", examples=["user-1234"]
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


class EmbeddingList(ApiModel):
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
    """What an OpenAI error holds; `code` is the precise reason."""

    message: ErrorMessage
    type: str = Field(description="Kind of the error, in OpenAI's words.", examples=["invalid_request_error"])
    param: str | None = Field(description="Always null.", examples=[None])
    code: Reason


class OpenAIErrorBody(ApiModel):
    """An error as OpenAI writes it, and beside it as TEI writes it on this route."""

    error: OpenAIErrorDetail = Field(
        description="The error as OpenAI writes it.",
        examples=[
            {
                "message": "`dimensions` must be at least 1 (got 0)",
                "type": "invalid_request_error",
                "param": None,
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
