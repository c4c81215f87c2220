"""Chooses the token budget by measuring: the smallest that reaches 95 % of the engine's peak rate.

A larger budget than that only makes everybody wait longer for the batch in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from embedserve_runtime.forward.batch import PackedBatch

MIN_BUDGET = 256
MAX_BUDGET = 65_536
# What a typical text has; a shorter maximum of the model wins.
SEQUENCE_TOKENS = 128
# The longest text that a warm-up runs on a CPU. Attention works in blocks there from 512 tokens on: a longer text does
# nothing else, and may take gigabytes and minutes that no request has asked for.
MAX_WARM_UP_TOKENS_ON_CPU = 640
WARM_UP_LENGTHS = (4, 8, 12, 16, 24, 48, 96)
SHARE_OF_PEAK = 0.95
# The rate has stopped growing when this many doublings in a row each gain less than this.
FLAT_DOUBLINGS = 2
MIN_GAIN = 1.02
REPEATS = 3
# The time that forming a batch, handing it to the engine's thread and handing its results back take. For a model that
# is a table this is more than the run.
HANDOVER_SECONDS = 1e-4


@dataclass(frozen=True, slots=True)
class Measurement:
    """The rate at one token budget. tokens_per_second: of all batches that run at the same time."""

    budget: int
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Calibration:
    budget: int
    tokens_per_second: float
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class SampleTexts:
    """Makes batches that a model can run.

    max_length: the longest sequence that it takes, in tokens. max_batch_tokens: the largest batch that is tried.
    """

    max_length: int
    vocabulary_size: int
    max_batch_tokens: int = MAX_BUDGET

    @property
    def length(self) -> int:
        """Tokens of a typical text."""
        return min(SEQUENCE_TOKENS, self.max_length)

    def fill(self, tokens: int) -> PackedBatch:
        """Return `tokens` tokens as typical texts, the last one shorter where they do not divide evenly."""
        whole, left = divmod(tokens, self.length)
        return self.pack([self.length] * whole + [left] * (left > 0))

    def pack(self, lengths: Sequence[int]) -> PackedBatch:
        """Return a batch of sequences of these lengths."""
        ids = (np.arange(sum(lengths), dtype=np.int64) * 7919 % self.vocabulary_size).astype(np.int32)
        return PackedBatch.pack(np.split(ids, np.cumsum(lengths)[:-1]))


def calibrate(
    run: Callable[[PackedBatch], object],
    texts: SampleTexts,
    *,
    concurrency: int,
    seconds: float,
    clock: Callable[[], float],
) -> Calibration:
    """Run growing batches until the rate no longer grows or `seconds` are over; the best of a few runs counts for each.

    concurrency: how many batches run at the same time, each on its own thread, as in a server. Rates are compared
    including the time that it takes to hand batches over, and reported without it.

    The first batch is run once more beforehand, since an engine's first run prepares buffers; that is not counted.
    """
    measurements: list[Measurement] = []
    budget, flat, peak = MIN_BUDGET, 0, 0.0
    with _run_concurrently(run, concurrency, clock) as runs:
        runs.run(texts.fill(budget))
        deadline = clock() + seconds
        while budget <= texts.max_batch_tokens and flat < FLAT_DOUBLINGS:
            rate, last_run = runs.best_rate(texts.fill(budget), deadline)
            measurements.append(Measurement(budget, rate))
            served = _served_rate(measurements[-1], concurrency)
            flat = flat + 1 if served < peak * MIN_GAIN else 0
            peak = max(peak, served)
            # The next batch takes about twice as long as this one.
            if clock() + 2 * last_run > deadline:
                break
            budget *= 2
    best = next(m for m in measurements if _served_rate(m, concurrency) >= SHARE_OF_PEAK * peak)
    return Calibration(best.budget, best.tokens_per_second, tuple(measurements))


def _served_rate(measured: Measurement, concurrency: int) -> float:
    """Return the tokens a second where such batches follow each other, `concurrency` at once."""
    tokens = concurrency * measured.budget
    return tokens / (tokens / measured.tokens_per_second + HANDOVER_SECONDS)


def measure_rate(
    run: Callable[[PackedBatch], object], texts: SampleTexts, *, concurrency: int, clock: Callable[[], float]
) -> float:
    """Measure the tokens per second of typical texts, as many at once as batches; the best of a few runs."""
    with _run_concurrently(run, concurrency, clock) as runs:
        return runs.best_rate(texts.fill(texts.length), math.inf)[0]


def limit_warm_up(max_length: int, device: str) -> int:
    """Return the greatest length that a warm-up runs. max_length: the model's, in tokens. device: "cpu" or an
    accelerator, whose buffers of the worst case must exist before the first request."""
    return min(max_length, MAX_WARM_UP_TOKENS_ON_CPU) if device == "cpu" else max_length


def warm_up(run: Callable[[PackedBatch], object], texts: SampleTexts, longest: int) -> None:
    """Run one sequence of `longest` tokens (`limit_warm_up`), and one each of some others: buffers of batches of one
    length and of mixed length exist before the first request."""
    run(texts.pack([longest]))
    run(texts.pack([min(length, longest) for length in WARM_UP_LENGTHS]))


@dataclass(frozen=True, slots=True)
class _ConcurrentRuns:
    """Runs batches and measures their rates.

    run: runs a batch `concurrency` times at once and returns after the last.
    """

    run: Callable[[PackedBatch], object]
    concurrency: int
    clock: Callable[[], float]

    def best_rate(self, batch: PackedBatch, deadline: float) -> tuple[float, float]:
        """Return the tokens per second of the fastest run, and the seconds of the last one."""
        best = 0.0
        for _ in range(REPEATS):
            started = self.clock()
            self.run(batch)
            took = self.clock() - started
            best = max(best, self.concurrency * batch.tokens / max(took, 1e-9))
            if self.clock() + took > deadline:
                break
        return best, took


@contextmanager
def _run_concurrently(
    run: Callable[[PackedBatch], object], concurrency: int, clock: Callable[[], float]
) -> Iterator[_ConcurrentRuns]:
    if concurrency == 1:
        yield _ConcurrentRuns(run, concurrency, clock)
        return
    with ThreadPoolExecutor(concurrency) as threads:
        yield _ConcurrentRuns(lambda batch: list(threads.map(run, [batch] * concurrency)), concurrency, clock)
