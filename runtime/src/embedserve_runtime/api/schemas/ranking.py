"""Bodies of `POST /rerank`, `/v1/rerank` and `/v2/rerank`: those of TEI, and of Cohere, Jina and who follows them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from embedserve_runtime.api.schemas.base import (
    UNION_MEMBER,
    ApiModel,
    Direction,
    ExpectedInput,
    FailFastList,
    Index,
    ModelId,
    Positive,
    Query,
    RawScores,
    RequestBody,
    RequestId,
    Truncate,
    is_none,
)
from embedserve_runtime.api.schemas.cohere import CohereVersion
from embedserve_runtime.api.schemas.compatibility import ignored_for, refused_for, supported_for


class RerankDocument(ApiModel):
    """A document as an object; its text is ranked, or the fields that `rank_fields` names."""

    model_config = ConfigDict(extra="allow")

    text: str | None = Field(
        None, exclude_if=is_none, description="The text that is ranked.", examples=["A list of numbers."]
    )


class RerankRequest(RequestBody):
    """Body of `POST /rerank`, `/v1/rerank` and `/v2/rerank`.

    With `texts` the answer is TEI's, with `documents` it has Cohere's members and Jina's.
    """

    paths = ("/rerank", "/v1/rerank", "/v2/rerank")

    query: Query
    texts: Annotated[FailFastList[str] | None, supported_for("TEI")] = Field(
        None,
        description="The texts to rank, for an answer as TEI gives it.",
        examples=[["A list of numbers.", "A fruit."]],
    )
    documents: Annotated[
        FailFastList[
            Annotated[
                Annotated[str, UNION_MEMBER] | Annotated[RerankDocument, UNION_MEMBER],
                Field(union_mode="left_to_right"),
            ]
        ]
        | None,
        supported_for("Cohere", "Jina", "Voyage"),
        ExpectedInput("a list of texts and objects with a `text`", "a text or an object with a `text`"),
        Field(
            description="The documents to rank, as texts or as objects with a text, instead of `texts`.",
            examples=[None],
        ),
    ] = None
    top_n: Annotated[Positive | None, supported_for("Cohere", "Jina", "vLLM")] = Field(
        None, description="How many of the best; null gives all.", examples=[3]
    )
    top_k: Annotated[Positive | None, supported_for("Voyage")] = Field(
        None, description="The same as `top_n`.", examples=[3]
    )
    return_documents: Annotated[bool | None, supported_for("Cohere", "Jina", "Voyage")] = Field(
        None, description="Give each result with its text; null means false.", examples=[True]
    )
    return_text: Annotated[bool | None, supported_for("TEI")] = Field(
        None, description="The same as `return_documents`.", examples=[True]
    )
    raw_scores: Annotated[RawScores, supported_for("TEI")] = None
    truncate: Annotated[Truncate, supported_for("TEI")] = None
    truncation: Annotated[bool | None, supported_for("Voyage")] = Field(
        None, description="The same as `truncate`.", examples=[True]
    )
    truncation_direction: Annotated[Direction, supported_for("TEI")] = None
    truncation_side: Annotated[Literal["left", "right"] | None, supported_for("vLLM")] = Field(
        None, description="The same as `truncation_direction`.", examples=["right"]
    )
    truncate_prompt_tokens: Annotated[
        Literal[-1] | None,
        refused_for("vLLM"),
        ExpectedInput("-1, what the model takes; use `max_tokens_per_query` and `max_tokens_per_doc`"),
    ] = Field(None, description="Refused unless -1.", examples=[-1])
    max_tokens_per_query: Annotated[Positive | None, supported_for("Embedserve")] = Field(
        None, description="The query is cut to so many tokens first.", examples=[256]
    )
    max_tokens_per_doc: Annotated[Positive | None, supported_for("Cohere")] = Field(
        None, description="Documents are cut to so many tokens first.", examples=[512]
    )
    max_chunks_per_doc: Annotated[
        Literal[1] | None,
        refused_for("Cohere"),
        ExpectedInput(
            "1: a document is cut to what the model takes; use `max_tokens_per_doc`, or send the chunks as documents"
        ),
    ] = Field(None, description="Refused unless 1.", examples=[1])
    rank_fields: Annotated[FailFastList[str] | None, supported_for("Cohere")] = Field(
        None,
        description="The fields of documents that are ranked, in this order, each on a line; null means text.",
        examples=[["text"]],
    )
    instruction: Annotated[str | None, supported_for("Embedserve")] = Field(
        None,
        description="What ranking means, for models whose template has a place for it.",
        examples=["Given a web search query, retrieve passages that answer it"],
    )
    priority: Annotated[int | None, ignored_for("Cohere", "vLLM")] = Field(
        None, description="Accepted for compatibility; not used.", examples=[0]
    )


class RerankItem(ApiModel):
    """A text by its place in the request, with its score."""

    index: Index
    score: float = Field(description="How well the text answers the query.", examples=[0.98])
    text: str | None = Field(
        None,
        exclude_if=is_none,
        description="The text, with `return_text`.",
        examples=["A list of numbers."],
    )


class RerankResult(ApiModel):
    """A document by its place in the request, with its score."""

    index: Index
    relevance_score: float = Field(
        description="The score of `/rerank`, between 0 and 1 for most models.", examples=[0.98]
    )
    document: RerankDocument | None = Field(
        None,
        exclude_if=is_none,
        description="The document, with `return_documents`.",
        examples=[{"text": "A list of numbers."}],
    )


class RerankUnits(ApiModel):
    """Cohere's unit: a query with up to 100 documents."""

    search_units: int = Field(description="How many units there were.", examples=[1])


class RerankTokens(ApiModel):
    """Tokens after truncation, special ones included."""

    input_tokens: int = Field(description="Tokens of all pairs.", examples=[24])


class RerankMeta(ApiModel):
    """Counts, where Cohere has them."""

    api_version: CohereVersion = Field(
        description="The version of Cohere's API.", examples=[{"version": "2"}]
    )
    billed_units: RerankUnits = Field(
        description="How many units there were.", examples=[{"search_units": 1}]
    )
    tokens: RerankTokens = Field(description="How many tokens there were.", examples=[{"input_tokens": 24}])


class RerankUsage(ApiModel):
    """Counts, where Jina has them."""

    prompt_tokens: int = Field(description="Tokens of all pairs.", examples=[24])
    total_tokens: int = Field(description="The same number.", examples=[24])


class RerankResponse(ApiModel):
    """Answer of both routes: Cohere's members and Jina's, the best result first."""

    id: RequestId
    model: ModelId
    results: list[RerankResult] = Field(
        description="The documents, the best first.", examples=[[{"index": 0, "relevance_score": 0.98}]]
    )
    meta: RerankMeta = Field(
        description="Counts, where Cohere has them.",
        examples=[
            {
                "api_version": {"version": "2"},
                "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": 24},
            }
        ],
    )
    usage: RerankUsage = Field(
        description="Counts, where Jina has them.", examples=[{"prompt_tokens": 24, "total_tokens": 24}]
    )
    object: Literal["list"] = Field("list", description="Always `list`.", examples=["list"])
