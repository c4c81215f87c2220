"""The outputs of a forward pass, requested as flags and returned as arrays. Free of models and of engine libraries."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Flag, auto
from typing import TypeVar

import numpy as np
from msgspec import Struct

from embedserve_runtime.forward.arrays import BoolArray, FloatArray, Int32Array

T = TypeVar("T")


class OutputKind(Flag):
    """The kinds of output of a model; several can be requested of one forward pass.

    DENSE: the vector of a sequence, before cut and normalize. LOGITS: of a classifier's labels.
    SPARSE: weights of vocabulary entries. MULTI_VECTOR: a vector for each token that counts.
    HIDDEN: the encoder's last hidden state of every token.
    """

    DENSE = auto()
    LOGITS = auto()
    SPARSE = auto()
    MULTI_VECTOR = auto()
    HIDDEN = auto()


class SparseVector(Struct, frozen=True, eq=False):
    """A sparse vector.

    indices: int32, ascending, each once. values: float32, above 0.
    """

    indices: Int32Array
    values: FloatArray

    @property
    def nbytes(self) -> int:
        return self.indices.nbytes + self.values.nbytes

    def copy(self) -> SparseVector:
        return SparseVector(self.indices.copy(), self.values.copy())


class ModelOutput(Struct, frozen=True, eq=False):
    """The outputs of a model for some sequences, in their order; None for what was not requested. All float32.

    dense: (sequences, full dimensions). logits: (sequences, labels).
    multi_vectors, hidden: an array (tokens, size) for each sequence.
    padding: positions that the forward pass computed besides the real tokens; of a whole batch only.
    is_finite: bool (sequences,), whether multi_vectors and hidden are finite, where the device checked them; of a whole
        batch only. None: not checked.
    """

    dense: FloatArray | None = None
    logits: FloatArray | None = None
    sparse: Sequence[SparseVector] | None = None
    multi_vectors: Sequence[FloatArray] | None = None
    hidden: Sequence[FloatArray] | None = None
    padding: int = 0
    is_finite: BoolArray | None = None

    def slice(self, start: int, stop: int, outputs: OutputKind) -> ModelOutput:
        """Select these outputs of the sequences from `start` to `stop`.

        Of arrays that differ in length copies are made: a view would keep those of the whole batch in memory.
        """
        is_dense_alone = outputs is OutputKind.DENSE
        if is_dense_alone:  # a question to flags takes longer than all else of a short request
            return ModelOutput(None if self.dense is None else self.dense[start:stop])
        sparse, vectors, hidden = self.sparse, self.multi_vectors, self.hidden
        return ModelOutput(
            self.dense[start:stop] if self.dense is not None and OutputKind.DENSE in outputs else None,
            self.logits[start:stop] if self.logits is not None and OutputKind.LOGITS in outputs else None,
            [vector.copy() for vector in sparse[start:stop]]
            if sparse is not None and OutputKind.SPARSE in outputs
            else None,
            [rows.copy() for rows in vectors[start:stop]]
            if vectors is not None and OutputKind.MULTI_VECTOR in outputs
            else None,
            [rows.copy() for rows in hidden[start:stop]]
            if hidden is not None and OutputKind.HIDDEN in outputs
            else None,
        )

    @property
    def nbytes(self) -> int:
        arrays = (self.dense, self.logits)
        return self.ragged_bytes + sum(array.nbytes for array in arrays if array is not None)

    @property
    def ragged_bytes(self) -> int:
        """Bytes of the arrays that differ in length, which no row width bounds."""
        members = (self.sparse, self.multi_vectors, self.hidden)
        return sum(array.nbytes for member in members if member is not None for array in member)

    @classmethod
    def gather(cls, count: int, parts: Sequence[tuple[Sequence[int], ModelOutput]]) -> ModelOutput:
        """Gather the outputs of `count` sequences from parts, each with the indices of its sequences. Rows that no part
        has hold zeros or nothing."""
        if len(parts) == 1 and (count == 1 or _are_all(parts[0][0], count)):
            return parts[0][1]
        return cls(
            _gather_rows(count, [(indices, part.dense) for indices, part in parts]),
            _gather_rows(count, [(indices, part.logits) for indices, part in parts]),
            _gather_ragged(count, [(indices, part.sparse) for indices, part in parts], _NO_SPARSE),
            _gather_ragged(count, [(indices, part.multi_vectors) for indices, part in parts], _NO_VECTORS),
            _gather_ragged(count, [(indices, part.hidden) for indices, part in parts], _NO_VECTORS),
        )


def _are_all(indices: Sequence[int], count: int) -> bool:
    """Return whether the indices are those of all sequences, in order."""
    every = range(count)
    return indices == every if isinstance(indices, range) else list(indices) == list(every)


_NO_VECTORS: FloatArray = np.zeros((0, 0), dtype=np.float32)
_NO_SPARSE = SparseVector(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32))


def _gather_rows(count: int, parts: Sequence[tuple[Sequence[int], FloatArray | None]]) -> FloatArray | None:
    present = [(indices, values) for indices, values in parts if values is not None]
    if not present:
        return None
    rows = np.zeros((count, present[0][1].shape[1]), dtype=np.float32)
    for indices, values in present:
        rows[list(indices)] = values
    return rows


def _gather_ragged(
    count: int, parts: Sequence[tuple[Sequence[int], Sequence[T] | None]], nothing: T
) -> list[T] | None:
    if all(values is None for _, values in parts):
        return None
    merged = [nothing] * count
    for indices, values in parts:
        for index, value in zip(indices, values or (), strict=True):
            merged[index] = value
    return merged
