"""Sequences of token ids, and the packed batch of them that a forward pass takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np

from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import BoolArray, Int32Array


@dataclass(frozen=True, slots=True, eq=False)
class TokenSequence:
    """The token ids of a sequence, with what the model must know of it besides.

    ids: int32, shape (length,). types: the token type of each, the same shape, or None where all are of type 0.
    pool_start: index of the first token that is pooled; those before it are a prompt that pooling excludes.
    is_query_role: whether it is encoded as a query, where a model tells queries from documents.
    attended_length: how many leading tokens attention sees; the others see those and are not seen. None for all.
    task: the number of the task that it is encoded for, of those that are served (`ModelCard.other_tasks`).
    """

    ids: Int32Array
    types: Int32Array | None = None
    pool_start: int = 0
    is_query_role: bool = False
    attended_length: int | None = None
    task: int = 0

    def __len__(self) -> int:
        return len(self.ids)


# A sequence before it is packed; plain ids are all of type 0 and all pooled.
Tokens = Int32Array | TokenSequence


@dataclass(frozen=True, slots=True, eq=False)
class FlatTokens(Sequence[Int32Array]):
    """Plain sequences stored end to end; an array for one sequence is made only when it is asked for.

    token_ids: int32, shape (tokens,). cu_seqlens: int32, shape (sequences + 1,), from 0 on, as of `PackedBatch`.
    """

    token_ids: Int32Array
    cu_seqlens: Int32Array

    @classmethod
    def build(cls, token_ids: Int32Array, lengths: Int32Array) -> FlatTokens:
        cu_seqlens = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=cu_seqlens[1:])
        return cls(token_ids, cu_seqlens)

    def __len__(self) -> int:
        return len(self.cu_seqlens) - 1

    @overload
    def __getitem__(self, index: int) -> Int32Array: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Int32Array]: ...
    def __getitem__(self, index: int | slice) -> Int32Array | Sequence[Int32Array]:
        indices = range(len(self))[index]
        if isinstance(indices, int):
            return self.token_ids[self.cu_seqlens[indices] : self.cu_seqlens[indices + 1]]
        if len(indices) == len(self) and indices.step == 1:
            return self
        if indices.step != 1:
            return [self[position] for position in indices]
        bounds = self.cu_seqlens[indices.start : max(indices.start, indices.stop) + 1]
        return FlatTokens(self.token_ids[bounds[0] : bounds[-1]], bounds - bounds[0])

    def __iter__(self) -> Iterator[Int32Array]:
        for start, stop in pairwise(self.cu_seqlens.tolist()):
            yield self.token_ids[start:stop]

    @property
    def lengths(self) -> Int32Array:
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]


def get_lengths(sequences: Sequence[Tokens]) -> list[int]:
    return sequences.lengths.tolist() if isinstance(sequences, FlatTokens) else [*map(len, sequences)]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Sequences packed end to end, without padding.

    token_ids: int32, shape (tokens,)
    cu_seqlens: int32, shape (sequences + 1,): sequence i is token_ids[cu_seqlens[i]:cu_seqlens[i + 1]]
    token_types: int32, shape (tokens,), or None where all tokens are of type 0
    pool_starts: int32, shape (sequences,), index of the first pooled token of each, or None where all are pooled
    queries: bool, shape (sequences,), which sequences are encoded as queries, or None where none does
    attended_lengths: int32, shape (sequences,), leading tokens that attention sees, from 1 on, or None where it sees
    all
    tasks: int32, shape (sequences,), the number of each sequence's task, or None where all are of task 0
    """

    token_ids: Int32Array
    cu_seqlens: Int32Array
    token_types: Int32Array | None = None
    pool_starts: Int32Array | None = None
    queries: BoolArray | None = None
    attended_lengths: Int32Array | None = None
    tasks: Int32Array | None = None

    @classmethod
    def pack(cls, sequences: Sequence[Tokens]) -> PackedBatch:
        """Join non-empty sequences, in the order given; those that are joined are not copied."""
        if isinstance(sequences, FlatTokens):
            return cls(sequences.token_ids, sequences.cu_seqlens)
        cu_seqlens = np.zeros(len(sequences) + 1, dtype=np.int32)
        np.cumsum([len(sequence) for sequence in sequences], out=cu_seqlens[1:])
        ids = np.concatenate(
            [sequence.ids if isinstance(sequence, TokenSequence) else sequence for sequence in sequences]
        )
        if not any(isinstance(sequence, TokenSequence) for sequence in sequences):
            return cls(ids, cu_seqlens)
        return cls(
            ids,
            cu_seqlens,
            _join_token_types(sequences, cu_seqlens),
            _collect_pool_starts(sequences),
            _collect_query_flags(sequences),
            _collect_attended_counts(sequences),
            _collect_tasks(sequences),
        )

    def select(self, indices: Int32Array) -> PackedBatch:
        """Select some sequences, by their numbers, as a batch of their own."""
        rows = self.find_rows(indices)
        cu_seqlens = np.zeros(len(indices) + 1, dtype=np.int32)
        np.cumsum(self.lengths[indices], out=cu_seqlens[1:])
        return PackedBatch(
            self.token_ids[rows],
            cu_seqlens,
            None if self.token_types is None else self.token_types[rows],
            None if self.pool_starts is None else self.pool_starts[indices],
            None if self.queries is None else self.queries[indices],
            None if self.attended_lengths is None else self.attended_lengths[indices],
            None if self.tasks is None else self.tasks[indices],
        )

    def find_rows(self, indices: Int32Array) -> Int32Array:
        """Find the positions of the tokens of some of its sequences, sequence after sequence."""
        lengths = self.lengths[indices]
        ends = np.cumsum(lengths)
        rows: Int32Array = np.arange(lengths.sum(), dtype=np.int32) + np.repeat(
            self.cu_seqlens[:-1][indices] - ends + lengths, lengths
        )
        return rows

    @property
    def lengths(self) -> Int32Array:
        # Not np.diff, which takes ten times as long for a few sequences.
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest sequence."""
        return self.tokens if len(self.cu_seqlens) == 2 else int(self.lengths.max())

    @property
    def tokens(self) -> int:
        return int(self.cu_seqlens[-1])

    def check_types(self, rows: int) -> None:
        """Raise EngineFailure when a token type is not one of the `rows` that the encoder has.

        Without this an engine that lays types and positions out in one table would read another position.
        """
        if self.token_types is None:
            return
        low, high = int(self.token_types.min()), int(self.token_types.max())
        # An encoder without a table of types has nothing to add for type 0.
        if low < 0 or high >= max(rows, 1):
            raise EngineFailure(
                f"a batch of {self.tokens} tokens has token types from {low} to {high}, the encoder {rows}"
            )


def _join_token_types(sequences: Sequence[Tokens], cu_seqlens: Int32Array) -> Int32Array | None:
    typed = [
        (start, sequence.types)
        for sequence, start in zip(sequences, cu_seqlens[:-1], strict=True)
        if isinstance(sequence, TokenSequence) and sequence.types is not None
    ]
    if not typed:
        return None
    types = np.zeros(cu_seqlens[-1], dtype=np.int32)
    for start, values in typed:
        types[start : start + len(values)] = values
    return types


def _collect_pool_starts(sequences: Sequence[Tokens]) -> Int32Array | None:
    counts = [sequence.pool_start if isinstance(sequence, TokenSequence) else 0 for sequence in sequences]
    return np.array(counts, dtype=np.int32) if any(counts) else None


def _collect_query_flags(sequences: Sequence[Tokens]) -> BoolArray | None:
    marks = [isinstance(sequence, TokenSequence) and sequence.is_query_role for sequence in sequences]
    return np.array(marks) if any(marks) else None


def _collect_tasks(sequences: Sequence[Tokens]) -> Int32Array | None:
    tasks = [sequence.task if isinstance(sequence, TokenSequence) else 0 for sequence in sequences]
    return np.array(tasks, dtype=np.int32) if any(tasks) else None


def _collect_attended_counts(sequences: Sequence[Tokens]) -> Int32Array | None:
    counts = [
        sequence.attended_length if isinstance(sequence, TokenSequence) else None for sequence in sequences
    ]
    if all(count is None for count in counts):
        return None
    filled = [
        len(sequence) if count is None else count for sequence, count in zip(sequences, counts, strict=True)
    ]
    return np.array(filled, dtype=np.int32)
