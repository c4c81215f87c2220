"""Sparse vectors without an encoder: each token of a text has a weight of its own, however often it occurs.

Source: SparseStaticEmbedding of sentence-transformers 6.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.results import SparseVector


@dataclass(frozen=True, slots=True, eq=False)
class StaticWeights:
    """weights: float32 (vocabulary,), none below 0."""

    weights: FloatArray

    def __call__(self, batch: PackedBatch) -> list[SparseVector]:
        """One vector a sequence, which has no special tokens."""
        made = []
        for ids in np.split(batch.token_ids, batch.cu_seqlens[1:-1]):
            present = np.unique(ids).astype(np.int32)
            kept = present[~(self.weights[present] <= 0)]
            made.append(SparseVector(kept, self.weights[kept]))
        return made
