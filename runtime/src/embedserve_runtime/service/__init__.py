"""The path of a request: prompt -> tokens -> batches -> results -> cut, scores, normalise.

Every dialect of the API comes through here, so what a request means is decided once. Knows no HTTP.

    values     what is asked for and what comes back
    service    the path itself
    micro_batching  small queries, many at a time
    roles      what inputs are, and which text goes before them
    spans      which tokens the parts of a text have
    finishing  from what the engine gives to what is wanted of it
    ranking    documents in order, by pairs or by token vectors
    relevance  how well documents answer a query, by several results of one model
    together   a query and its documents at once
"""

from __future__ import annotations

from embedserve_runtime.service.ranking import rank
from embedserve_runtime.service.relevance import Measure, Relevance, RelevanceQuery, relevance
from embedserve_runtime.service.service import TOKENIZER_THREADS, EmbeddingService
from embedserve_runtime.service.values import (
    EmbedQuery,
    EmbedResult,
    Pair,
    Role,
    ScoreQuery,
    ScoreResult,
    Timings,
    Usage,
)

__all__ = [
    "TOKENIZER_THREADS",
    "EmbedQuery",
    "EmbedResult",
    "EmbeddingService",
    "Measure",
    "Pair",
    "Relevance",
    "RelevanceQuery",
    "Role",
    "ScoreQuery",
    "ScoreResult",
    "Timings",
    "Usage",
    "rank",
    "relevance",
]
