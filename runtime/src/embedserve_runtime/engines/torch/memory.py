"""What happens when the device's memory runs out: the batch goes in halves, once, and from then on batches stay below
what failed. Pure decisions; the engine acts on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from embedserve_runtime.engines.base import PackedBatch

# A budget is lowered to this share of the batch that did not fit.
LOWERED = 0.5


@dataclass(slots=True)
class MemoryBudget:
    """max_tokens: of a batch that goes to the device as one, None while nothing has failed. failures: how often
    memory ran out."""

    max_tokens: int | None = field(default=None)
    failures: int = 0

    def lower(self, batch: PackedBatch) -> None:
        """`batch` did not fit. A single sequence lowers nothing: it cannot be split."""
        self.failures += 1
        if len(batch.lengths) > 1:
            self.max_tokens = max(int(batch.tokens * LOWERED), 1)

    def split(self, batch: PackedBatch) -> list[PackedBatch]:
        """`batch` in runs of whole sequences within the budget; a longer sequence is a run of its own."""
        if self.max_tokens is None or batch.tokens <= self.max_tokens:
            return [batch]
        cuts, start = [], 0
        for end in range(1, len(batch.lengths) + 1):
            if end - start > 1 and batch.cu_seqlens[end] - batch.cu_seqlens[start] > self.max_tokens:
                cuts.append(end - 1)
                start = end - 1
        return split(batch, cuts)


def split_in_halves(batch: PackedBatch) -> list[PackedBatch]:
    """Two batches of about the same tokens; one where there is one sequence."""
    if len(batch.lengths) == 1:
        return [batch]
    middle = int(np.searchsorted(batch.cu_seqlens, batch.tokens / 2))
    return split(batch, [min(max(middle, 1), len(batch.lengths) - 1)])


def split(batch: PackedBatch, at: list[int]) -> list[PackedBatch]:
    """The batch cut before each sequence numbered in `at`, ascending."""
    bounds = [0, *at, len(batch.lengths)]
    parts = []
    for first, last in pairwise(bounds):
        start, end = int(batch.cu_seqlens[first]), int(batch.cu_seqlens[last])
        types = None if batch.token_types is None else batch.token_types[start:end]
        unpooled = None if batch.unpooled is None else batch.unpooled[first:last]
        queries = None if batch.queries is None else batch.queries[first:last]
        attended = None if batch.attended_lengths is None else batch.attended_lengths[first:last]
        bounds_of_part = batch.cu_seqlens[first : last + 1] - start
        parts.append(
            PackedBatch(batch.token_ids[start:end], bounds_of_part, types, unpooled, queries, attended)
        )
    return parts
