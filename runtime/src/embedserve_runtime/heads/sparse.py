"""Turns packed hidden states into sparse vectors over the vocabulary (SPLADE): log(1 + max(0, logit)), pooled over
tokens.

Source: sentence-transformers' SpladePooling. Special tokens take part, as there. Logits of all tokens at once would
take tokens * vocabulary * 4 bytes (1 GB for 8,192 tokens of BERT), so both tokens and rows are taken in tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import SparseVector
from embedserve_runtime.heads.layers import HeadLayerWeights, apply_layers
from embedserve_runtime.model.heads.description import SparseHead, SparsePooling

# The size of one tile of logits, and of the dense rows in memory before they become sparse. 16 MiB are 137 tokens of
# BERT: products this wide run at full speed.
MAX_TILE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class LoadedSparseHead:
    """A masked-LM head with its tensors. It gives each sequence a sparse vector of all entries above 0."""

    head: SparseHead
    layers: Sequence[HeadLayerWeights]

    def __call__(self, hidden: FloatArray, batch: PackedBatch) -> list[SparseVector]:
        bounds, max_sequences = batch.cu_seqlens, max(1, MAX_TILE_BYTES // (4 * self.head.vocabulary))
        vectors: list[SparseVector] = []
        for first in range(0, len(bounds) - 1, max_sequences):
            part = bounds[first : first + max_sequences + 1]
            dense = pool_logits(hidden[part[0] : part[-1]], part - part[0], self.head, self.layers)
            vectors += map(to_sparse_vector, dense)
        return vectors


def pool_logits(
    hidden: FloatArray, cu_seqlens: Int32Array, head: SparseHead, layers: Sequence[HeadLayerWeights]
) -> FloatArray:
    """Pool the logits of each sequence into a dense row: (sequences, vocabulary), float32."""
    pooled = np.zeros((len(cu_seqlens) - 1, head.vocabulary), dtype=np.float32)
    for tokens, sequences, starts in _iterate_tiles(
        cu_seqlens, max(1, MAX_TILE_BYTES // (4 * head.vocabulary))
    ):
        logits = np.maximum(apply_layers(layers, hidden[tokens]), np.float32(0))
        if head.pooling is SparsePooling.MAX:
            # The logarithm grows with its argument, so it can wait until only the largest is left.
            pooled[sequences] = np.maximum(pooled[sequences], np.maximum.reduceat(logits, starts, axis=0))
        else:
            pooled[sequences] += np.add.reduceat(_log1p(logits, head), starts, axis=0)
    return _log1p(pooled, head) if head.pooling is SparsePooling.MAX else pooled


def to_sparse_vector(row: FloatArray) -> SparseVector:
    """Return the entries above 0 of a row (vocabulary,). NaN entries stay, so that the check for finite values sees
    them."""
    indices = np.flatnonzero(~(row <= 0)).astype(np.int32)
    return SparseVector(indices, row[indices])


def write_out(vectors: Sequence[SparseVector], ids: Int32Array) -> FloatArray:
    """Write sparse vectors as rows with a column for each of the token ids, (vectors, ids). ids: ascending; no vector
    has another one."""
    rows = np.zeros((len(vectors), len(ids)), dtype=np.float32)
    for row, vector in zip(rows, vectors, strict=True):
        row[np.searchsorted(ids, vector.indices)] = vector.values
    return rows


def prune(vector: SparseVector, *, top_k: int | None = None, threshold: float = 0.0) -> SparseVector:
    """Keep the entries above `threshold`, at most the `top_k` largest; of equal ones those with the lower indices."""
    if top_k is None and threshold <= 0:
        return vector
    positions = np.flatnonzero(vector.values > np.float32(threshold))
    if top_k is not None and len(positions) > top_k:
        largest = np.argsort(-vector.values[positions], kind="stable")[:top_k]
        positions = positions[np.sort(largest)]
    return SparseVector(vector.indices[positions], vector.values[positions])


def _log1p(values: FloatArray, head: SparseHead) -> FloatArray:
    logarithms: FloatArray = np.log1p(values)
    return np.log1p(logarithms) if head.log_twice else logarithms


def _iterate_tiles(cu_seqlens: Int32Array, size: int) -> Iterator[tuple[slice, slice, Int32Array]]:
    """Yield token ranges of at most `size`, the sequences in each, and where those begin inside it."""
    total = int(cu_seqlens[-1])
    for first in range(0, total, size):
        last = min(first + size, total)
        sequence = int(np.searchsorted(cu_seqlens, first, side="right")) - 1
        end = int(np.searchsorted(cu_seqlens, last, side="left"))
        starts = np.maximum(cu_seqlens[sequence:end] - first, 0)
        yield slice(first, last), slice(sequence, end), starts
