"""Decides what a request means, in no dialect.

Prompt -> tokens -> batches -> results -> truncation, scores, normalization.

Every dialect of the API comes through here, so what a request means is decided once. This package knows no HTTP.

    service         the path of a request
    types           requests and results
    loaded_model    the model that answers
    micro_batching  small queries, many at a time
    fair_thread_pool    threads that clients take turns on
    roles           the role of inputs, and their prompt
    chunking        long texts in chunks, parts of one text
    pair_budgets    pairs cut to budgets of tokens
    limits          requests that would take too much memory
    spans           the tokens of parts of a text
    postprocessing  results of the engine to those of a request
    ranking         documents in order, by pairs or by token vectors
    relevance       scores of documents by several measures of one model
    concurrency     a query and its documents at the same time
    readiness       the phase of the process
"""

from __future__ import annotations

from embedserve_runtime.service.chunking import average_chunks, embed_late_chunks
from embedserve_runtime.service.ranking import rank
from embedserve_runtime.service.relevance import Measure, RelevanceQuery, RelevanceResult, compute_relevance
from embedserve_runtime.service.service import TOKENIZER_THREADS, InferenceService
from embedserve_runtime.service.types import (
    ChunkedResult,
    EmbedQuery,
    EmbedResult,
    Pair,
    RequestUsage,
    Role,
    ScoreQuery,
    ScoreResult,
    Timings,
)

__all__ = [
    "TOKENIZER_THREADS",
    "ChunkedResult",
    "EmbedQuery",
    "EmbedResult",
    "InferenceService",
    "Measure",
    "Pair",
    "RelevanceQuery",
    "RelevanceResult",
    "RequestUsage",
    "Role",
    "ScoreQuery",
    "ScoreResult",
    "Timings",
    "average_chunks",
    "compute_relevance",
    "embed_late_chunks",
    "rank",
]
