"""Packed hidden states to sparse vectors over the vocabulary (SPLADE): log(1 + max(0, logit)), pooled over the tokens.

Source: sentence-transformers' SpladePooling. Special tokens take part, as there. Logits of all tokens at once would
take tokens * vocabulary * 4 bytes (1 GB for 8,192 tokens of BERT), so both tokens and rows are taken in tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from embedserve_runtime.engines.base import FloatArray, Int32Array, PackedBatch
from embedserve_runtime.engines.results import SparseVector
from embedserve_runtime.heads.layers import LoadedLayer, run
from embedserve_runtime.model.heads.description import SparseHead, SparsePooling

# Of one tile of logits, and of the dense rows held while they are made sparse. 16 MiB are 137 tokens of BERT:
# products this wide run at full speed.
TILE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Splade:
    """A masked-LM head with its tensors: one sparse vector a sequence, of all entries above 0."""

    head: SparseHead
    layers: Sequence[LoadedLayer]

    def __call__(self, hidden: FloatArray, batch: PackedBatch) -> list[SparseVector]:
        bounds, max_sequences = batch.cu_seqlens, max(1, TILE_BYTES // (4 * self.head.vocabulary))
        made: list[SparseVector] = []
        for first in range(0, len(bounds) - 1, max_sequences):
            part = bounds[first : first + max_sequences + 1]
            dense = rows(hidden[part[0] : part[-1]], part - part[0], self.head, self.layers)
            made += map(nonzero, dense)
        return made


def rows(
    hidden: FloatArray, cu_seqlens: Int32Array, head: SparseHead, layers: Sequence[LoadedLayer]
) -> FloatArray:
    """The vectors with all their zeros: (sequences, vocabulary), float32."""
    pooled = np.zeros((len(cu_seqlens) - 1, head.vocabulary), dtype=np.float32)
    for tokens, sequences, starts in _tiles(cu_seqlens, max(1, TILE_BYTES // (4 * head.vocabulary))):
        logits = np.maximum(run(layers, hidden[tokens]), np.float32(0))
        if head.pooling is SparsePooling.MAX:
            # The logarithm grows with its argument, so it can wait until only the largest is left.
            pooled[sequences] = np.maximum(pooled[sequences], np.maximum.reduceat(logits, starts, axis=0))
        else:
            pooled[sequences] += np.add.reduceat(_log(logits, head), starts, axis=0)
    return _log(pooled, head) if head.pooling is SparsePooling.MAX else pooled


def nonzero(row: FloatArray) -> SparseVector:
    """The entries above 0 of a row (vocabulary,), and those that are not a number, for others to see."""
    indices = np.flatnonzero(~(row <= 0)).astype(np.int32)
    return SparseVector(indices, row[indices])


def prune(vector: SparseVector, *, top_k: int | None = None, threshold: float = 0.0) -> SparseVector:
    """The entries above `threshold`, at most the `top_k` largest; of equal ones the lower indices."""
    if top_k is None and threshold <= 0:
        return vector
    kept = np.flatnonzero(vector.values > np.float32(threshold))
    if top_k is not None and len(kept) > top_k:
        largest = np.argsort(-vector.values[kept], kind="stable")[:top_k]
        kept = kept[np.sort(largest)]
    return SparseVector(vector.indices[kept], vector.values[kept])


def _log(values: FloatArray, head: SparseHead) -> FloatArray:
    once: FloatArray = np.log1p(values)
    return np.log1p(once) if head.log_twice else once


def _tiles(cu_seqlens: Int32Array, size: int) -> Iterator[tuple[slice, slice, Int32Array]]:
    """Token ranges of at most `size`, the sequences that each touches, and where those begin inside it."""
    total = int(cu_seqlens[-1])
    for first in range(0, total, size):
        last = min(first + size, total)
        sequence = int(np.searchsorted(cu_seqlens, first, side="right")) - 1
        end = int(np.searchsorted(cu_seqlens, last, side="left"))
        starts = np.maximum(cu_seqlens[sequence:end] - first, 0)
        yield slice(first, last), slice(sequence, end), starts
