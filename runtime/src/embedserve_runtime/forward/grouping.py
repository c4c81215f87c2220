"""Groups the sequences of a packed batch that share one padded attention call, for engines without packed attention.

The linear layers run over real tokens only. Attention needs sequences of one shape side by side, so sequences of
similar length form a group and are padded to the longest of it. A group costs a fixed overhead (an iteration of
the engine's loop), padding costs scores that nobody reads; the greedy cut below weighs one against the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.forward.batch import PackedBatch

Int64Array = NDArray[np.int64]

# What one more group costs, in floating-point operations of attention that could have been done instead. Measured
# with MiniLM on two Zen 4 cores: 30 to 60 us an iteration, at 75 GFLOP/s a core.
GROUP_OVERHEAD_FLOPS = 4_500_000
# Tokens of a group of sequences of one length: what its queries, keys and values take should fit the processor's
# cache. Measured with MiniLM on Zen 4 (1 MiB a core): from 1,024 tokens on the same attention takes twice the time.
MAX_GROUP_TOKENS = 512
# Padded tokens that a block may have for each real one, where everything runs over padding.
PADDING_SHARE = 0.125


@dataclass(frozen=True, slots=True)
class AttentionGroups:
    """Index arrays that an attention loop reads. P is the number of padded positions of all groups.

    rows: int64 (P,), the packed token of each padded position; positions beyond a sequence repeat its first token,
        whose scores are masked.
    row_starts: int64 (groups + 1,), where each group starts in `rows`.
    shapes: int64 (groups, 2), sequences and padded length.
    lengths: int32 (sequences,), leading positions that attention sees, in group order; length_starts: int64
        (groups + 1,).
    unpad: int64 (tokens,), for each packed token its padded position.
    """

    rows: Int64Array
    row_starts: Int64Array
    shapes: Int64Array
    lengths: Int32Array
    length_starts: Int64Array
    unpad: Int64Array


def group_sizes(descending: Int32Array, hidden_size: int) -> list[int]:
    """Cut lengths in descending order into runs; returns how many sequences each run has."""
    # QK^T and PV: two products of 2 * length^2 * hidden operations each.
    flops = 4.0 * hidden_size * descending.astype(np.float64) ** 2
    sizes: list[int] = []
    start, waste = 0, 0.0
    for index in range(len(descending)):
        extra = float(flops[start] - flops[index])
        if waste + extra > GROUP_OVERHEAD_FLOPS:
            sizes.append(index - start)
            start, waste = index, 0.0
        else:
            waste += extra
    sizes.append(len(descending) - start)
    return sizes


@dataclass(frozen=True, slots=True)
class EqualGroups:
    """Runs of consecutive sequences of one length, in a batch in which those stand side by side.

    starts, ends: int64 (groups, 1), tokens of each run.
    shapes: int64 (groups, 3), its sequences, their length, and -1 for the columns: what reshapes its rows.
    """

    starts: Int64Array
    ends: Int64Array
    shapes: Int64Array

    @classmethod
    def build(cls, lengths: Int32Array) -> EqualGroups:
        """Build groups of sequences of these lengths, of at most MAX_GROUP_TOKENS unless one sequence has more."""
        if len(lengths) == 1:  # in a third of the time that the general way takes
            length = int(lengths[0])
            return cls(
                np.zeros((1, 1), np.int64),
                np.full((1, 1), length, np.int64),
                np.array([[1, length, -1]], np.int64),
            )
        first = np.flatnonzero(np.diff(lengths, prepend=-1))
        counts = np.diff(first, append=len(lengths)).astype(np.int64)
        runs = lengths[first].astype(np.int64)
        max_sequences = np.maximum(MAX_GROUP_TOKENS // runs, 1)
        parts = -(-counts // max_sequences)
        # A run is cut into parts of like size.
        number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        counts, parts, runs = (np.repeat(values, parts) for values in (counts, parts, runs))
        sizes = counts * (number + 1) // parts - counts * number // parts
        ends = np.cumsum(sizes * runs)
        shapes = np.stack((sizes, runs, np.full_like(runs, -1)), axis=1)
        return cls((ends - sizes * runs)[:, None], ends[:, None], shapes)


def choose_padded_sizes(descending: Int32Array) -> list[int]:
    """Cut lengths in descending order into runs that are padded as a whole; returns how many sequences each has."""
    sizes: list[int] = []
    start = real = 0
    for index, length in enumerate(descending.tolist()):
        padded = (index + 1 - start) * int(descending[start])
        if index > start and padded - real - length > PADDING_SHARE * (real + length):
            sizes.append(index - start)
            start, real = index, 0
        real += length
    sizes.append(len(descending) - start)
    return sizes


def group(batch: PackedBatch, hidden_size: int) -> AttentionGroups:
    """Group the sequences of `batch`; hidden_size is heads x head size."""
    lengths = batch.lengths
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    sizes = np.array(group_sizes(ordered, hidden_size), dtype=np.int64)
    length_starts = np.concatenate(([0], np.cumsum(sizes)))
    padded_length = ordered[length_starts[:-1]].astype(np.int64)
    row_starts = np.concatenate(([0], np.cumsum(sizes * padded_length)))

    width = np.repeat(padded_length, sizes)  # padded length of each sequence, in group order
    first_row = np.concatenate(([0], np.cumsum(width)[:-1]))
    within = np.arange(row_starts[-1]) - np.repeat(first_row, width)
    first_token = batch.cu_seqlens[:-1][order].astype(np.int64)
    real = within < np.repeat(ordered, width)
    rows = np.repeat(first_token, width) + np.where(real, within, 0)
    unpad = np.empty(batch.tokens, dtype=np.int64)
    unpad[rows[real]] = np.flatnonzero(real)
    return AttentionGroups(
        rows=rows,
        row_starts=row_starts,
        shapes=np.stack((sizes, padded_length), axis=1),
        lengths=(ordered if batch.attended_lengths is None else batch.attended_lengths[order]).astype(
            np.int32
        ),
        length_starts=length_starts,
        unpad=unpad,
    )
