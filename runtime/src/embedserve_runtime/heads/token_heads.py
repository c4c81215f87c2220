"""Turns packed hidden states into lexical weights or token vectors.

Sources: the M3 embedder of FlagEmbedding, sentence-transformers' MultiVectorEncoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.forward.arrays import BoolArray, FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import SparseVector
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.heads.layers import HeadLayerWeights, apply_layers
from embedserve_runtime.model.heads.description import LexicalHead, MultiVectorHead


@dataclass(frozen=True, slots=True, eq=False)
class LoadedLexicalHead:
    """A lexical head with its tensors. It gives each sequence the largest weight of each of its token ids, if above
    0."""

    head: LexicalHead
    layers: Sequence[HeadLayerWeights]

    def __call__(self, hidden: FloatArray, batch: PackedBatch) -> list[SparseVector]:
        weights = apply_layers(self.layers, hidden)[:, 0]
        # Not a comparison with > 0: NaN weights stay, so that the check for finite values sees them.
        counts = ~(weights <= 0) & ~np.isin(batch.token_ids, self.head.dropped)
        sequences = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
        return _take_largest_by_id(
            sequences[counts], batch.token_ids[counts], weights[counts], len(batch.lengths)
        )


@dataclass(frozen=True, slots=True, eq=False)
class LoadedMultiVectorHead:
    """A multi-vector head with its tensors. It gives each sequence an array (tokens that count, out features)."""

    head: MultiVectorHead
    layers: Sequence[HeadLayerWeights]

    def __call__(self, hidden: FloatArray, batch: PackedBatch) -> list[FloatArray]:
        vectors = apply_layers(self.layers, hidden)
        if self.head.normalize:
            vectors = normalize(vectors)
        each = np.split(vectors, batch.cu_seqlens[1:-1])
        counted = self._find_counted_tokens(batch)
        if counted is not None:
            parts = np.split(counted, batch.cu_seqlens[1:-1])
            each = [rows[counts] for rows, counts in zip(each, parts, strict=True)]
        return [rows[self.head.skipped :] for rows in each]

    def _find_counted_tokens(self, batch: PackedBatch) -> BoolArray | None:
        """Return a mask (tokens,) of the tokens whose id is not skipped; None where no id is skipped."""
        late = self.head.interaction
        if late is None or not late.skipped:
            return None
        queries = np.zeros(len(batch.lengths), np.bool_) if batch.queries is None else batch.queries
        skips = np.where(queries, "query" in late.skipped_roles, "document" in late.skipped_roles)
        skipped: BoolArray = np.isin(batch.token_ids, late.skipped) & np.repeat(skips, batch.lengths)
        return ~skipped


def _take_largest_by_id(
    sequences: NDArray[np.int64], ids: Int32Array, weights: FloatArray, count: int
) -> list[SparseVector]:
    """Take the largest weight of each id in each of `count` sequences. A NaN is larger than any other."""
    if not len(ids):
        return [SparseVector(ids, weights)] * count
    # One sort over the whole batch: sorting each sequence takes ten times as long.
    keys = sequences << 32 | ids
    order = np.argsort(keys)
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    keys, largest = keys[starts], np.maximum.reduceat(weights[order], starts)
    cuts = np.searchsorted(keys, np.arange(1, count) << 32)
    indices = (keys & 0xFFFFFFFF).astype(np.int32)
    return [
        SparseVector(*parts) for parts in zip(np.split(indices, cuts), np.split(largest, cuts), strict=True)
    ]
