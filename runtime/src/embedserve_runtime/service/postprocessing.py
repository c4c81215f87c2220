"""Turns the engine's results into those of a request by pure functions: truncate, normalize, prune, pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from embedserve_runtime.errors import NotFinite
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind, SparseVector
from embedserve_runtime.heads.dense import normalize, truncate_dimensions
from embedserve_runtime.heads.late_chunking import pool_chunks
from embedserve_runtime.heads.sparse import prune
from embedserve_runtime.heads.token_pooling import pool_for_role, pool_tokens
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import TokenPooling
from embedserve_runtime.service.roles import is_query, select_card
from embedserve_runtime.service.spans import SpanTokens
from embedserve_runtime.service.types import EmbedQuery

NO_ROWS: FloatArray = np.zeros((0, 0), dtype=np.float32)


class PostprocessedOutputs(Struct, frozen=True, eq=False):
    """The outputs of an embedding request in their final form."""

    dense: FloatArray
    sparse: Sequence[SparseVector]
    multi_vectors: Sequence[FloatArray]
    hidden: Sequence[FloatArray]
    chunks: Sequence[FloatArray]


def postprocess_outputs(
    card: ModelCard, results: ModelOutput, query: EmbedQuery, span_tokens: Sequence[SpanTokens]
) -> PostprocessedOutputs:
    """Postprocess the results of one query.

    span_tokens: the tokens of each span of each input, where the query has spans. Raises NotFinite, BatchTooLarge.
    """
    hidden, vectors, sparse = results.hidden or (), results.multi_vectors or (), results.sparse or ()
    check_finite((*hidden, *vectors))
    check_finite(vector.values for vector in sparse)
    return PostprocessedOutputs(
        NO_ROWS if results.dense is None else postprocess_dense(card, results.dense, query),
        [prune(vector, top_k=query.top_k, threshold=query.threshold) for vector in sparse],
        [_pool_token_vectors(card, text_vectors, query) for text_vectors in vectors],
        hidden if OutputKind.HIDDEN in query.outputs else (),
        [
            postprocess_dense(card, pool_chunks(states, tokens), query)
            for states, tokens in zip(hidden, span_tokens, strict=True)
        ]
        if span_tokens
        else (),
    )


def postprocess_dense(card: ModelCard, rows: FloatArray, query: EmbedQuery) -> FloatArray:
    """Postprocess the dense vectors of one query, or of several with the same options. Raises NotFinite."""
    pipeline = select_card(card, query).pipeline
    vectors = truncate_dimensions(rows, query.dimensions or pipeline.dimensions)
    check_finite((vectors,))
    if pipeline.normalize if query.normalize is None else query.normalize:
        vectors = normalize(vectors)
    return np.ascontiguousarray(vectors)


def _pool_token_vectors(card: ModelCard, vectors: FloatArray, query: EmbedQuery) -> FloatArray:
    pooled = pool_for_role(vectors, card.late_interaction, is_query=is_query(card, query))
    return pooled if query.pool_factor is None else pool_tokens(pooled, TokenPooling(query.pool_factor))


def check_finite(arrays: Iterable[FloatArray]) -> None:
    """Raise NotFinite if a value is not finite."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise NotFinite("the model gave a value that is not a finite number; no vector is returned")
