"""Ranks documents for a query, by models that read both as a pair and by models with token vectors (MaxSim)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedserve_runtime.errors import InvalidInput, NotFinite
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.similarity import compute_max_sim_scores
from embedserve_runtime.service.concurrency import MAX_INLINE_PRODUCTS, merge_usages, run_concurrently
from embedserve_runtime.service.service import InferenceService
from embedserve_runtime.service.types import EmbedQuery, Pair, Role, ScoreQuery, ScoreResult


async def rank(service: InferenceService, query: ScoreQuery) -> ScoreResult:
    """Score pairs of a query and a document. Raises any RequestError.

    For token vectors the score is the mean, over the query's vectors, of the largest product with one of the
    document's; with `raw` it is the sum, which is ColBERT's MaxSim.
    """
    if not service.card.ranks_by_vectors:
        return await service.score(query)
    pairs = [pair for pair in query.items if isinstance(pair, Pair)]
    service.check_count(len(pairs))
    if query.instruction is not None:
        raise InvalidInput("this model takes no `instruction`")
    if query.query_tokens is not None or query.document_tokens is not None:
        pairs = await service.shorten(pairs, query.query_tokens, query.document_tokens)
    queries = [*dict.fromkeys(pair.first for pair in pairs)]
    documents = [pair.second for pair in pairs]
    embedded_queries, embedded_documents = await run_concurrently(
        service.embed(_embed_query(queries, "query", query)),
        service.embed(_embed_query(documents, "document", query)),
    )
    numbers = {text: number for number, text in enumerate(queries)}
    vector_pairs = [
        (embedded_queries.multi_vectors[numbers[pair.first]], vectors)
        for pair, vectors in zip(pairs, embedded_documents.multi_vectors, strict=True)
    ]
    if (
        sum(len(query_vectors) * vectors.size for query_vectors, vectors in vector_pairs)
        <= MAX_INLINE_PRODUCTS
    ):
        scores = _compute_scores(vector_pairs, raw=query.raw)
    else:
        scores = await service.run_in_thread(lambda: _compute_scores(vector_pairs, raw=query.raw))
    if not np.isfinite(scores).all():
        raise NotFinite("a product of the vectors is not a finite number; no score is returned")
    rows = scores[:, None]
    return ScoreResult(
        rows, rows, ("relevance",), merge_usages([embedded_queries.usage, embedded_documents.usage])
    )


def _embed_query(texts: Sequence[str], role: Role, query: ScoreQuery) -> EmbedQuery:
    return EmbedQuery(
        texts,
        truncate=query.truncate,
        side=query.side,
        vector_space=query.vector_space,
        timeout=query.timeout,
        outputs=OutputKind.MULTI_VECTOR,
        role=role,
    )


def _compute_scores(vector_pairs: Sequence[tuple[FloatArray, FloatArray]], *, raw: bool) -> FloatArray:
    sums = [compute_max_sim_scores(query_vectors, [vectors])[0] for query_vectors, vectors in vector_pairs]
    counts = [1 if raw else max(1, len(query_vectors)) for query_vectors, _ in vector_pairs]
    return np.asarray(np.array(sums) / np.array(counts), dtype=np.float32)
