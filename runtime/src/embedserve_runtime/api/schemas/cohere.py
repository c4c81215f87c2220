"""Bodies of Cohere's `POST /v2/embed`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from embedserve_runtime.api.schemas.base import (
    ApiModel,
    EmbeddingType,
    FailFastList,
    Positive,
    RequestId,
    TypedInputs,
    is_none,
)
from embedserve_runtime.api.schemas.compatibility import ignored_for, refused_for


class CohereContent(ApiModel):
    """A part of an input; only texts are embedded."""

    type: str = Field(description="Kind of the part; only `text` is taken.", examples=["text"])
    text: str | None = Field(None, description="The text.", examples=["What is a vector?"])


class CohereInput(ApiModel):
    """An input in parts, which are joined with blanks."""

    content: FailFastList[CohereContent] = Field(
        description="The parts.", examples=[[{"type": "text", "text": "What is a vector?"}]]
    )


class CohereEmbedRequest(TypedInputs):
    """Body of `POST /v2/embed`: `texts` or `inputs`."""

    paths = ("/v2/embed",)

    texts: FailFastList[str] | None = Field(
        None, description="The texts to embed.", examples=[["What is a vector?", "A list of numbers."]]
    )
    inputs: FailFastList[CohereInput] | None = Field(
        None,
        description="The inputs in parts, instead of `texts`.",
        examples=[[{"content": [{"type": "text", "text": "What is a vector?"}]}]],
    )
    images: Annotated[FailFastList[str] | None, refused_for("Cohere")] = Field(
        None, description="Refused unless empty: the model takes text.", examples=[None]
    )
    priority: Annotated[int | None, ignored_for("Cohere")] = Field(
        None, description="Accepted for compatibility; not used.", examples=[0]
    )
    embedding_types: FailFastList[EmbeddingType] | None = Field(
        None, description="How vectors are written; null means float.", examples=[["float", "int8"]]
    )
    output_dimension: Positive | None = Field(
        None, description="Keep only the first dimensions; null keeps all.", examples=[256]
    )
    max_tokens: Positive | None = Field(
        None,
        description="Cut inputs to so many tokens, special tokens included; null: to what the model takes.",
        examples=[512],
    )
    truncate: Literal["NONE", "START", "END"] | None = Field(
        None,
        description="The side that is cut off; NONE refuses instead. null means END.",
        examples=["END"],
    )


class CohereEmbeddings(ApiModel):
    """A list of vectors for each type asked for."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    floats: list[list[float]] | None = Field(
        None,
        alias="float",
        exclude_if=is_none,
        description="Vectors as numbers.",
        examples=[[[0.6, 0.8]]],
    )
    int8: list[list[int]] | None = Field(
        None,
        exclude_if=is_none,
        description="Vectors in signed bytes.",
        examples=[[[95, 127]]],
    )
    uint8: list[list[int]] | None = Field(
        None,
        exclude_if=is_none,
        description="Vectors in unsigned bytes.",
        examples=[[[223, 255]]],
    )
    binary: list[list[int]] | None = Field(
        None,
        exclude_if=is_none,
        description="A bit a dimension, in signed bytes.",
        examples=[[[64]]],
    )
    ubinary: list[list[int]] | None = Field(
        None,
        exclude_if=is_none,
        description="A bit a dimension, in unsigned bytes.",
        examples=[[[192]]],
    )
    base64: list[str] | None = Field(
        None,
        exclude_if=is_none,
        description="Vectors as base64 of little-endian float32 bytes.",
        examples=[["mpkZP83MTD8="]],
    )


class CohereVersion(ApiModel):
    """The version of Cohere's API."""

    version: Literal["1", "2"] = Field(description="Number of the version.", examples=["2"])


class CohereUnits(ApiModel):
    """Tokens after truncation, with prompt and special tokens."""

    input_tokens: int = Field(description="Tokens of all texts.", examples=[12])


class CohereMeta(ApiModel):
    """Counts, where Cohere has them."""

    api_version: CohereVersion = Field(
        description="The version of Cohere's API.", examples=[{"version": "2"}]
    )
    billed_units: CohereUnits = Field(
        description="How many tokens there were.", examples=[{"input_tokens": 12}]
    )


class CohereEmbedResponse(ApiModel):
    """Answer of `POST /v2/embed`."""

    id: RequestId
    embeddings: CohereEmbeddings = Field(
        description="A list of vectors for each type asked for.", examples=[{"float": [[0.6, 0.8]]}]
    )
    texts: list[str] = Field(description="The texts of the request.", examples=[["What is a vector?"]])
    meta: CohereMeta = Field(
        description="Counts, where Cohere has them.",
        examples=[{"api_version": {"version": "2"}, "billed_units": {"input_tokens": 12}}],
    )
    response_type: Literal["embeddings_by_type"] = Field(
        description="Always `embeddings_by_type`.", examples=["embeddings_by_type"]
    )
