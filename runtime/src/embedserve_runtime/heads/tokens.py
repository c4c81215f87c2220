"""Packed hidden states to what each token gives: lexical weights and token vectors.

Sources: the M3 embedder of FlagEmbedding, sentence-transformers' MultiVectorEncoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embedserve_runtime.engines.base import BoolArray, FloatArray, Int32Array, PackedBatch
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.heads.layers import LoadedLayer, run
from embedserve_runtime.model.heads.description import LexicalHead, MultiVectorHead
from embedserve_runtime.results import SparseVector


@dataclass(frozen=True, slots=True, eq=False)
class Lexical:
    """One sparse vector a sequence: for each token id in it the largest of its weights, where that is above 0."""

    head: LexicalHead
    layers: Sequence[LoadedLayer]

    def __call__(self, hidden: FloatArray, batch: PackedBatch) -> list[SparseVector]:
        weights = np.maximum(run(self.layers, hidden)[:, 0], np.float32(0))
        dropped = np.isin(batch.token_ids, self.head.dropped)
        return [
            _largest_by_id(ids[~without], values[~without])
            for ids, values, without in zip(
                *(np.split(array, batch.cu_seqlens[1:-1]) for array in (batch.token_ids, weights, dropped)),
                strict=True,
            )
        ]


@dataclass(frozen=True, slots=True, eq=False)
class MultiVectors:
    """Of each sequence an array (tokens that count, out features)."""

    head: MultiVectorHead
    layers: Sequence[LoadedLayer]

    def __call__(self, hidden: FloatArray, batch: PackedBatch) -> list[FloatArray]:
        vectors = run(self.layers, hidden)
        if self.head.normalize:
            vectors = normalize(vectors)
        counted = np.split(self._counted(batch), batch.cu_seqlens[1:-1])
        return [
            one[counts][self.head.skipped :]
            for one, counts in zip(np.split(vectors, batch.cu_seqlens[1:-1]), counted, strict=True)
        ]

    def _counted(self, batch: PackedBatch) -> BoolArray:
        """(tokens,), which of them are not to be skipped for their id."""
        late = self.head.interaction
        if late is None or not late.skipped:
            return np.ones(batch.tokens, dtype=np.bool_)
        queries = np.zeros(len(batch.lengths), np.bool_) if batch.queries is None else batch.queries
        skips = np.where(queries, "query" in late.skipped_roles, "document" in late.skipped_roles)
        skipped: BoolArray = np.isin(batch.token_ids, late.skipped) & np.repeat(skips, batch.lengths)
        return ~skipped


def _largest_by_id(ids: Int32Array, weights: FloatArray) -> SparseVector:
    """What is not a number stays, for others to see."""
    if not len(ids):
        return SparseVector(ids.astype(np.int32), weights)
    order = np.argsort(ids, kind="stable")
    indices, starts = np.unique(ids[order], return_index=True)
    largest = np.maximum.reduceat(weights[order], starts)
    kept = ~(largest <= 0)
    return SparseVector(indices[kept].astype(np.int32), largest[kept])
