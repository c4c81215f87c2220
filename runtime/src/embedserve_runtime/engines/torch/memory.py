"""Decides what happens when the device's memory runs out: the batch goes in halves, for a while batches stay below
what failed, and then they grow back step by step. Pure decisions; the engine acts on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import MemoryStatus

# Quiet time before a lowered budget doubles. A try that fails costs one forward pass and the allocator's cached blocks,
# some tenths of a second: about 1 % of the time at the first wait, below 0.1 % at the longest.
FIRST_WAIT_S = 30.0
MAX_WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class LoweredBudget:
    """The limit on batches after memory ran out. It doubles after each `wait_s` without another failure.

    max_batch_tokens: the limit right after the failure. original_tokens: there is no limit any more once doubling has
    reached these. failed_at: when memory ran out, in seconds of a monotonic clock. wait_s: seconds.
    """

    max_batch_tokens: int
    original_tokens: int
    failed_at: float
    wait_s: float

    @property
    def restored_at(self) -> float:
        """The time at which the limit ends if memory does not run out again, in seconds of the same clock."""
        # The least count with max_batch_tokens * 2**count >= original_tokens.
        doublings = ((self.original_tokens - 1) // self.max_batch_tokens).bit_length()
        return self.failed_at + doublings * self.wait_s

    def compute_max_batch_tokens(self, now: float) -> int | None:
        """Return the limit at a time, in tokens; None where it has ended."""
        if now >= self.restored_at:
            return None
        tokens = self.max_batch_tokens << int((now - self.failed_at) // self.wait_s)
        # The division may round up to the last doubling.
        return tokens if tokens < self.original_tokens else None


def lower_budget(
    former: LoweredBudget | None, failed_tokens: int, max_seen: int, now: float
) -> LoweredBudget:
    """Decide the limit after memory ran out at `now`: half of the batch that failed.

    former: the last decision. failed_tokens: of the batch that failed. max_seen: tokens of the largest batch so far,
    which the limit grows back to.
    """
    current = former.compute_max_batch_tokens(now) if former is not None else None
    half = max(failed_tokens // 2, 1)
    lowered = half if current is None else min(half, current)
    return LoweredBudget(lowered, max(max_seen, failed_tokens), now, choose_wait(former, now))


def choose_wait(former: LoweredBudget | None, now: float) -> float:
    """Choose how long after a failure at `now` the limit first doubles, in seconds: longer where the last doubling came
    too early, and from the start where all went well for a wait after the last one."""
    if former is None or now >= former.restored_at + former.wait_s:
        return FIRST_WAIT_S
    if now < former.failed_at + former.wait_s:
        # Nothing has grown since: one cause that took several halvings.
        return former.wait_s
    return min(2 * former.wait_s, MAX_WAIT_S)


class MemoryBudget:
    """Counts how often memory ran out, and splits batches by the limit that holds at the time of each.

    clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._max_seen = 0
        self._lowered: LoweredBudget | None = None

    @property
    def status(self) -> MemoryStatus:
        """The failures so far and the present limit. May be read from any thread."""
        return MemoryStatus(self._failures, self._compute_max_batch_tokens())

    def lower(self, batch: PackedBatch) -> None:
        """Lower the limit since `batch` did not fit. A single sequence lowers nothing: it cannot be split."""
        self._failures += 1
        if len(batch.lengths) > 1:
            self._lowered = lower_budget(self._lowered, batch.tokens, self._max_seen, self._clock())

    def split(self, batch: PackedBatch) -> list[PackedBatch]:
        """Split a batch into runs of whole sequences within the limit; a longer sequence is a run of its own."""
        self._max_seen = max(self._max_seen, batch.tokens)
        max_batch_tokens = self._compute_max_batch_tokens()
        if max_batch_tokens is None or batch.tokens <= max_batch_tokens:
            return [batch]
        cuts, start = [], 0
        for end in range(1, len(batch.lengths) + 1):
            if end - start > 1 and batch.cu_seqlens[end] - batch.cu_seqlens[start] > max_batch_tokens:
                cuts.append(end - 1)
                start = end - 1
        return split(batch, cuts)

    def _compute_max_batch_tokens(self) -> int | None:
        lowered = self._lowered
        return None if lowered is None else lowered.compute_max_batch_tokens(self._clock())


def split_in_halves(batch: PackedBatch) -> list[PackedBatch]:
    """Split into two batches of about the same tokens; into one where there is one sequence."""
    if len(batch.lengths) == 1:
        return [batch]
    middle = int(np.searchsorted(batch.cu_seqlens, batch.tokens / 2))
    return split(batch, [min(max(middle, 1), len(batch.lengths) - 1)])


def split(batch: PackedBatch, at: list[int]) -> list[PackedBatch]:
    """Split the batch before each sequence numbered in `at`, ascending."""
    bounds = [0, *at, len(batch.lengths)]
    parts = []
    for first, last in pairwise(bounds):
        start, end = int(batch.cu_seqlens[first]), int(batch.cu_seqlens[last])
        types = None if batch.token_types is None else batch.token_types[start:end]
        pool_starts = None if batch.pool_starts is None else batch.pool_starts[first:last]
        queries = None if batch.queries is None else batch.queries[first:last]
        attended = None if batch.attended_lengths is None else batch.attended_lengths[first:last]
        tasks = None if batch.tasks is None else batch.tasks[first:last]
        bounds_of_part = batch.cu_seqlens[first : last + 1] - start
        parts.append(
            PackedBatch(
                batch.token_ids[start:end], bounds_of_part, types, pool_starts, queries, attended, tasks
            )
        )
    return parts
