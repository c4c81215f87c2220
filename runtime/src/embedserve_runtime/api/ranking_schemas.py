"""Bodies of `POST /v1/rerank` and `/v2/rerank`, which Cohere, Jina and those who follow them share."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from embedserve_runtime.api.cohere_schemas import CohereVersion
from embedserve_runtime.api.schemas import ModelName


class RankDocument(Struct, frozen=True):
    """A document as an object; only its text is ranked."""

    text: str


class RankBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /v1/rerank` and `POST /v2/rerank`."""

    query: str
    documents: list[str | RankDocument]
    model: ModelName = None
    top_n: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="How many of the best; null gives all.")
    ] = None
    return_documents: Annotated[bool | None, Meta(description="Each result with its text.")] = None
    max_tokens_per_doc: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Documents are cut to so many tokens first.")
    ] = None
    max_chunks_per_doc: Annotated[int | None, Meta(description="Refused: documents are not chunked.")] = None
    rank_fields: Annotated[list[str] | None, Meta(description="Only text is ranked.")] = None
    instruction: Annotated[
        str | None, Meta(description="What ranking means, for models whose template has a place for it.")
    ] = None


class RankResult(Struct, frozen=True, omit_defaults=True):
    """A document by its place in the request; the score is that of `/rerank`, between 0 and 1 for most models."""

    index: int
    relevance_score: float
    document: RankDocument | None = None


class RankUnits(Struct, frozen=True):
    """Cohere's unit: a query with up to 100 documents."""

    search_units: int


class RankTokens(Struct, frozen=True):
    """Tokens after truncation, special ones included."""

    input_tokens: int


class RankMeta(Struct, frozen=True):
    """Counts, where Cohere has them."""

    api_version: CohereVersion
    billed_units: RankUnits
    tokens: RankTokens


class RankUsage(Struct, frozen=True):
    """Counts, where Jina has them."""

    prompt_tokens: int
    total_tokens: int


class RankAnswer(Struct, frozen=True):
    """Answer of both routes: Cohere's members and Jina's, the best result first."""

    id: str
    model: str
    results: list[RankResult]
    meta: RankMeta
    usage: RankUsage
    object: Literal["list"] = "list"
