"""Turns packed hidden states into dense vectors, by pure functions on arrays.

Sources of the formulas: sentence-transformers' Pooling, Dense and Normalize modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.forward.arrays import BoolArray, FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.heads.layers import HeadLayerWeights, apply_layers
from embedserve_runtime.model.pipeline import Pooling

# torch.nn.functional.normalize's eps: a zero vector stays zero instead of becoming NaN.
NORMALIZE_EPS = np.float32(1e-12)


@dataclass(frozen=True, slots=True, eq=False)
class DenseHead:
    """Pooling and the dense modules: (tokens, hidden) to (sequences, full dimensions)."""

    pooling: Sequence[Pooling]
    layers: Sequence[HeadLayerWeights]

    def __call__(self, hidden: FloatArray, batch: PackedBatch) -> FloatArray:
        return apply_layers(self.layers, pool_all(hidden, batch.cu_seqlens, self.pooling, batch.pool_starts))


@dataclass(frozen=True, slots=True, eq=False)
class RoutedHead:
    """Two heads on one encoder, with vectors of the same size: each sequence gets the head of its role."""

    documents: DenseHead
    queries: DenseHead

    def __call__(self, hidden: FloatArray, batch: PackedBatch) -> FloatArray:
        if batch.queries is None:
            return self.documents(hidden, batch)
        return select_by_role(self.documents(hidden, batch), self.queries(hidden, batch), batch.queries)


def select_by_role(documents: FloatArray, queries: FloatArray, are_queries: BoolArray) -> FloatArray:
    """Select the rows of `queries` where a sequence is a query, else those of `documents`."""
    rows: FloatArray = np.where(are_queries[:, None], queries, documents)
    return rows


def pool(
    hidden: FloatArray, cu_seqlens: Int32Array, pooling: Pooling, pool_starts: Int32Array | None = None
) -> FloatArray:
    """Pool each sequence of packed hidden states (tokens, hidden) into (sequences, hidden), float32.

    Every sequence has at least one token. pool_starts: (sequences,), index of the first token of each that is
    pooled; the last token of a sequence always is.
    """
    positions: Int32Array | None = None
    if pool_starts is not None:
        hidden, cu_seqlens, positions = _skip_prompts(hidden, cu_seqlens, pool_starts)
    starts, lengths = cu_seqlens[:-1], np.diff(cu_seqlens)
    match pooling:
        case Pooling.MEAN:
            return _sum_sequences(hidden, starts) / _to_column(lengths)
        case Pooling.MEAN_SQRT:
            return _sum_sequences(hidden, starts) / _to_column(np.sqrt(lengths))
        case Pooling.WEIGHTED_MEAN:
            weights = (_compute_token_positions(cu_seqlens) if positions is None else positions) + 1
            totals = np.add.reduceat(weights, starts, dtype=np.int64)
            return _sum_sequences(hidden * _to_column(weights), starts) / _to_column(totals)
        case Pooling.MAX:
            maxima: FloatArray = np.maximum.reduceat(hidden, starts, axis=0)
            return maxima
        case Pooling.CLS:
            return hidden[starts]
        case Pooling.LAST:
            return hidden[cu_seqlens[1:] - 1]


def _skip_prompts(
    hidden: FloatArray, cu_seqlens: Int32Array, pool_starts: Int32Array
) -> tuple[FloatArray, Int32Array, Int32Array]:
    """Leave out the first `pool_starts` tokens of each sequence.

    Returns the remaining states, their cu_seqlens, and the position that each had in its whole sequence.
    """
    lengths = np.diff(cu_seqlens)
    skipped = np.minimum(pool_starts, lengths - 1)
    positions = _compute_token_positions(cu_seqlens)
    is_pooled = positions >= np.repeat(skipped, lengths)
    bounds = np.zeros_like(cu_seqlens)
    np.cumsum(lengths - skipped, out=bounds[1:])
    return hidden[is_pooled], bounds, positions[is_pooled]


def _compute_token_positions(cu_seqlens: Int32Array) -> Int32Array:
    """Return the position of each token in its sequence, from 0."""
    positions = np.arange(cu_seqlens[-1], dtype=np.int32)
    return positions - np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))


def _sum_sequences(hidden: FloatArray, starts: Int32Array) -> FloatArray:
    sums: FloatArray = np.add.reduceat(hidden, starts, axis=0)
    return sums


def _to_column(values: NDArray[Any]) -> FloatArray:
    return values.astype(np.float32)[:, None]


def pool_all(
    hidden: FloatArray,
    cu_seqlens: Int32Array,
    poolings: Sequence[Pooling],
    pool_starts: Int32Array | None = None,
) -> FloatArray:
    """Concatenate the vectors of several poolings: (sequences, len(poolings) * hidden)."""
    pooled = [pool(hidden, cu_seqlens, pooling, pool_starts) for pooling in poolings]
    return pooled[0] if len(pooled) == 1 else np.concatenate(pooled, axis=1)


def truncate_dimensions(vectors: FloatArray, dimensions: int) -> FloatArray:
    """Keep the first `dimensions` columns (Matryoshka), before normalizing."""
    return vectors[:, :dimensions]


def normalize(vectors: FloatArray) -> FloatArray:
    """Scale each row to L2 norm 1; a zero row stays zero.

    Each row has its own sum, so that a row alone gets the same bits as in a batch, and those of model2vec.
    """
    # The same as np.linalg.norm, which allocates two more arrays of this size.
    scaled: FloatArray = vectors * vectors
    norms = np.sqrt(np.add.reduce(scaled, axis=1))
    np.divide(vectors, np.maximum(norms, NORMALIZE_EPS)[:, None], out=scaled)
    return scaled
