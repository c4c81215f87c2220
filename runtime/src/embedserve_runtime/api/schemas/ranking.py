"""Bodies of `POST /v1/rerank` and `/v2/rerank`, which Cohere, Jina and those who follow them share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from embedserve_runtime.api.schemas.base import (
    UNION_MEMBER,
    ApiModel,
    ExpectedInput,
    FailFastList,
    Index,
    ModelId,
    ModelName,
    Positive,
    Query,
    RequestId,
    is_none,
)
from embedserve_runtime.api.schemas.cohere import CohereVersion


class RankDocument(ApiModel):
    """A document as an object; only its text is ranked."""

    text: str = Field(description="The text that is ranked.", examples=["A list of numbers."])


class RankBody(ApiModel):
    """Body of `POST /v1/rerank` and `POST /v2/rerank`."""

    query: Query
    documents: Annotated[
        FailFastList[
            Annotated[
                Annotated[str, UNION_MEMBER] | Annotated[RankDocument, UNION_MEMBER],
                Field(union_mode="left_to_right"),
            ]
        ],
        ExpectedInput("a list of texts and objects with a `text`", "a text or an object with a `text`"),
        Field(
            description="The documents to rank, as texts or as objects with a text.",
            examples=[["A list of numbers.", {"text": "A fruit."}]],
        ),
    ]
    model: ModelName = None
    top_n: Positive | None = Field(None, description="How many of the best; null gives all.", examples=[3])
    return_documents: bool | None = Field(
        None, description="Give each result with its text.", examples=[True]
    )
    max_tokens_per_doc: Positive | None = Field(
        None, description="Documents are cut to so many tokens first.", examples=[512]
    )
    max_chunks_per_doc: int | None = Field(
        None, description="Refused: documents are not chunked.", examples=[None]
    )
    rank_fields: FailFastList[str] | None = Field(
        None, description="Only text is ranked.", examples=[["text"]]
    )
    instruction: str | None = Field(
        None,
        description="What ranking means, for models whose template has a place for it.",
        examples=["Given a web search query, retrieve passages that answer it"],
    )


class RankResult(ApiModel):
    """A document by its place in the request, with its score."""

    index: Index
    relevance_score: float = Field(
        description="The score of `/rerank`, between 0 and 1 for most models.", examples=[0.98]
    )
    document: RankDocument | None = Field(
        None,
        exclude_if=is_none,
        description="The document, with `return_documents`.",
        examples=[{"text": "A list of numbers."}],
    )


class RankUnits(ApiModel):
    """Cohere's unit: a query with up to 100 documents."""

    search_units: int = Field(description="How many units there were.", examples=[1])


class RankTokens(ApiModel):
    """Tokens after truncation, special ones included."""

    input_tokens: int = Field(description="Tokens of all pairs.", examples=[24])


class RankMeta(ApiModel):
    """Counts, where Cohere has them."""

    api_version: CohereVersion = Field(
        description="The version of Cohere's API.", examples=[{"version": "2"}]
    )
    billed_units: RankUnits = Field(description="How many units there were.", examples=[{"search_units": 1}])
    tokens: RankTokens = Field(description="How many tokens there were.", examples=[{"input_tokens": 24}])


class RankUsage(ApiModel):
    """Counts, where Jina has them."""

    prompt_tokens: int = Field(description="Tokens of all pairs.", examples=[24])
    total_tokens: int = Field(description="The same number.", examples=[24])


class RankAnswer(ApiModel):
    """Answer of both routes: Cohere's members and Jina's, the best result first."""

    id: RequestId
    model: ModelId
    results: list[RankResult] = Field(
        description="The documents, the best first.", examples=[[{"index": 0, "relevance_score": 0.98}]]
    )
    meta: RankMeta = Field(
        description="Counts, where Cohere has them.",
        examples=[
            {
                "api_version": {"version": "2"},
                "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": 24},
            }
        ],
    )
    usage: RankUsage = Field(
        description="Counts, where Jina has them.", examples=[{"prompt_tokens": 24, "total_tokens": 24}]
    )
    object: Literal["list"] = Field("list", description="Always `list`.", examples=["list"])
