"""Documents in the order of how well they answer a query, by models of either kind: those that read query and document
as a pair, and those whose token vectors are compared (MaxSim).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.engines.results import Output
from embedserve_runtime.errors import InvalidInput, NotFinite
from embedserve_runtime.heads.similarity import max_sim_scores
from embedserve_runtime.service.concurrency import INLINE_PRODUCTS, join_usage, run_concurrently
from embedserve_runtime.service.service import EmbeddingService
from embedserve_runtime.service.values import EmbedQuery, Pair, Role, ScoreQuery, ScoreResult


async def rank(service: EmbeddingService, query: ScoreQuery) -> ScoreResult:
    """Scores of pairs of a query and a document. Of token vectors that is the mean, over the query's vectors, of the
    largest product with one of the document's; `raw` is the sum, ColBERT's own MaxSim. Raises any RequestError.
    """
    if not service.card.ranks_by_vectors:
        return await service.score(query)
    pairs = [pair for pair in query.items if isinstance(pair, Pair)]
    service.check_count(len(pairs))
    if query.instruction is not None:
        raise InvalidInput("this model takes no instruction")
    questions = [*dict.fromkeys(pair.first for pair in pairs)]
    documents = [pair.second for pair in pairs]
    if query.document_tokens is not None:
        documents = await service.shorten(documents, query.document_tokens)
    asked, given = await run_concurrently(
        service.embed(_vectors_of(questions, "query", query)),
        service.embed(_vectors_of(documents, "document", query)),
    )
    numbers = {text: number for number, text in enumerate(questions)}
    groups = [
        (asked.multi_vectors[numbers[pair.first]], vectors)
        for pair, vectors in zip(pairs, given.multi_vectors, strict=True)
    ]
    if sum(len(question) * vectors.size for question, vectors in groups) <= INLINE_PRODUCTS:
        scores = _scores(groups, raw=query.raw)
    else:
        scores = await service.in_thread(lambda: _scores(groups, raw=query.raw))
    if not np.isfinite(scores).all():
        raise NotFinite("a product of the vectors is not a finite number; no score is returned")
    return ScoreResult(scores[:, None], ("relevance",), join_usage(asked.usage, given.usage))


def _vectors_of(texts: Sequence[str], role: Role, query: ScoreQuery) -> EmbedQuery:
    return EmbedQuery(
        texts,
        truncate=query.truncate,
        side=query.side,
        vector_space=query.vector_space,
        timeout=query.timeout,
        outputs=Output.MULTI_VECTOR,
        role=role,
    )


def _scores(groups: Sequence[tuple[FloatArray, FloatArray]], *, raw: bool) -> FloatArray:
    sums = [max_sim_scores(question, [vectors])[0] for question, vectors in groups]
    counts = [1 if raw else max(1, len(question)) for question, _ in groups]
    return np.asarray(np.array(sums) / np.array(counts), dtype=np.float32)
