"""Scores documents for a query by several measures of the same model, and by their weighted sum."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from embedserve_runtime.errors import EmptyInput, InvalidInput, NotFinite, WrongModelKind
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.similarity import compute_max_sim_scores, compute_sparse_dot_products
from embedserve_runtime.service.concurrency import MAX_INLINE_PRODUCTS, merge_usages, run_concurrently
from embedserve_runtime.service.service import InferenceService
from embedserve_runtime.service.types import (
    EmbedQuery,
    EmbedResult,
    Pair,
    RequestUsage,
    Role,
    ScoreQuery,
)
from embedserve_runtime.tokenizing import Side

MAX_RELEVANCE_WEIGHT = 1e6


class Measure(StrEnum):
    """A measure of how well a document answers a query.

    DENSE: the product of the vectors, a cosine where they are normalized. SPARSE: the sum of products of shared
    weights. MULTI_VECTOR: the mean over the query's vectors of the largest product with one of the document's.
    CROSS_ENCODER: the logit of the pair.
    """

    DENSE = "dense"
    SPARSE = "sparse"
    MULTI_VECTOR = "multi_vector"
    CROSS_ENCODER = "cross_encoder"


MEASURE_OUTPUTS = {
    Measure.DENSE: OutputKind.DENSE,
    Measure.SPARSE: OutputKind.SPARSE,
    Measure.MULTI_VECTOR: OutputKind.MULTI_VECTOR,
    Measure.CROSS_ENCODER: OutputKind.LOGITS,
}


@dataclass(frozen=True, slots=True)
class RelevanceQuery:
    """A query whose documents are scored.

    weights: those of the measures to compute, in any order; empty for all that the model has, each with weight 1.
    divide: whether the weighted sum is divided by the sum of the weights. The prompt names are for vectors, not for
    pairs. truncate, side, vector_space, timeout: the same as in `EmbedQuery`.
    """

    query: str
    documents: Sequence[str]
    weights: Mapping[Measure, float] = field(default_factory=dict)
    divide: bool = True
    query_prompt_name: str | None = None
    document_prompt_name: str | None = None
    truncate: bool | None = None
    side: Side = "right"
    vector_space: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class RelevanceResult:
    """Scores of documents, in their order.

    scores, and each of the measures: float32, finite, (documents,). weights: those used. usage: its lengths are the
    query's before those of the documents, or those of the pairs.
    """

    scores: FloatArray
    measures: Mapping[Measure, FloatArray]
    weights: Mapping[Measure, float]
    usage: RequestUsage


async def compute_relevance(service: InferenceService, query: RelevanceQuery) -> RelevanceResult:
    """Compute the scores of the documents. Raises any RequestError.

    All measures of vectors come from one forward pass of the query and of each document, which share a batch where they
    fit.
    """
    if not query.documents:
        raise EmptyInput("`documents` cannot be empty")
    weights = _resolve_weights(service, query)
    measures, usage = await (
        _score_pairs(service, query)
        if Measure.CROSS_ENCODER in weights
        else _score_vectors(service, query, weights)
    )
    scores = weighted_sum(measures, weights, divide=query.divide)
    if not all(np.isfinite(numbers).all() for numbers in (scores, *measures.values())):
        raise NotFinite("a product of the vectors is not a finite number; no score is returned")
    return RelevanceResult(scores, measures, weights, usage)


def weighted_sum(
    measures: Mapping[Measure, FloatArray], weights: Mapping[Measure, float], *, divide: bool
) -> FloatArray:
    """Compute Σ w·s, or Σ w·s / Σ w as FlagEmbedding's `compute_score` does."""
    factors = np.array([weights[measure] for measure in measures])
    if divide:
        factors /= factors.sum()
    return (factors @ np.stack([*measures.values()])).astype(np.float32)


def _resolve_weights(service: InferenceService, query: RelevanceQuery) -> dict[Measure, float]:
    """Return the weight of each measure. Raises WrongModelKind, InvalidInput."""
    outputs = service.card.outputs
    available = [measure for measure in Measure if MEASURE_OUTPUTS[measure] in outputs]
    weights = {measure: query.weights[measure] for measure in Measure if measure in query.weights}
    weights = weights or dict.fromkeys(available, 1.0)
    for measure in weights:
        if measure not in available:
            raise WrongModelKind(
                f"model cannot score by `{measure}`: it has {' and '.join(available) or 'no measure'}"
            )
    if not all(0 <= weight <= MAX_RELEVANCE_WEIGHT for weight in weights.values()):
        raise InvalidInput(f"`weights` must be numbers from 0 to {MAX_RELEVANCE_WEIGHT:.0f}")
    if query.divide and not sum(weights.values()):
        raise InvalidInput("the sum of `weights` is 0, and cannot be divided by")
    return weights


async def _score_pairs(
    service: InferenceService, query: RelevanceQuery
) -> tuple[dict[Measure, FloatArray], RequestUsage]:
    if query.query_prompt_name is not None or query.document_prompt_name is not None:
        raise InvalidInput("prompts are for vectors; a cross-encoder's pairs get none")
    scored = await service.score(
        ScoreQuery(
            [Pair(query.query, document) for document in query.documents],
            ranks=True,
            raw=True,
            truncate=query.truncate,
            side=query.side,
            vector_space=query.vector_space,
            timeout=query.timeout,
        )
    )
    return {Measure.CROSS_ENCODER: scored.logits[:, 0]}, scored.usage


async def _score_vectors(
    service: InferenceService, query: RelevanceQuery, weights: Mapping[Measure, float]
) -> tuple[dict[Measure, FloatArray], RequestUsage]:
    outputs = OutputKind(0)
    for measure in weights:
        outputs |= MEASURE_OUTPUTS[measure]

    def embed(texts: Sequence[str], prompt_name: str | None, role: Role) -> Coroutine[Any, Any, EmbedResult]:
        return service.embed(
            EmbedQuery(
                texts,
                truncate=query.truncate,
                side=query.side,
                prompt_name=prompt_name,
                vector_space=query.vector_space,
                timeout=query.timeout,
                outputs=outputs,
                role=role,
            )
        )

    embedded_query, embedded_documents = await run_concurrently(
        embed([query.query], query.query_prompt_name, "query"),
        embed(query.documents, query.document_prompt_name, "document"),
    )
    products = sum(
        len(embedded_query.multi_vectors[0]) * vectors.size for vectors in embedded_documents.multi_vectors
    )
    if products <= MAX_INLINE_PRODUCTS:
        measures = _compute_measures(embedded_query, embedded_documents, weights)
    else:
        measures = await service.run_in_thread(_compute_measures, embedded_query, embedded_documents, weights)
    return measures, merge_usages([embedded_query.usage, embedded_documents.usage])


def _compute_measures(
    query: EmbedResult, documents: EmbedResult, measures: Mapping[Measure, float]
) -> dict[Measure, FloatArray]:
    scores: dict[Measure, FloatArray] = {}
    if Measure.DENSE in measures:
        scores[Measure.DENSE] = documents.dense @ query.dense[0]
    if Measure.SPARSE in measures:
        scores[Measure.SPARSE] = compute_sparse_dot_products(query.sparse[0], documents.sparse)
    if Measure.MULTI_VECTOR in measures:
        (vectors,) = query.multi_vectors
        sums = compute_max_sim_scores(vectors, documents.multi_vectors)
        scores[Measure.MULTI_VECTOR] = np.asarray(sums / max(1, len(vectors)), dtype=np.float32)
    return scores
