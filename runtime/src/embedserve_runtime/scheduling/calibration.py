"""Chooses the token budget by measuring: the smallest that reaches 95 % of the engine's peak rate.

A larger budget than that only makes everybody wait longer for the batch in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from embedserve_runtime.engines.base import Int32Array, PackedBatch

SMALLEST_BUDGET = 256
LARGEST_BUDGET = 65_536
# What a typical text has; a shorter maximum of the model wins.
SEQUENCE_TOKENS = 128
WARM_UP_LENGTHS = (4, 8, 12, 16, 24, 48, 96)
SHARE_OF_PEAK = 0.95
# The rate has stopped growing when this many doublings in a row each gain less than this.
FLAT_DOUBLINGS = 2
LEAST_GAIN = 1.02
REPEATS = 3
# What a batch takes beside its run: cut, handed to the engine's thread, its results handed back. Of a model that is a
# table this is more than the run.
HANDING_OVER_SECONDS = 1e-4


@dataclass(frozen=True, slots=True)
class Measurement:
    budget: int
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Calibration:
    budget: int
    tokens_per_second: float
    measurements: tuple[Measurement, ...]


def calibrate(
    run: Callable[[PackedBatch], object],
    *,
    max_length: int,
    vocabulary_size: int,
    seconds: float,
    clock: Callable[[], float],
) -> Calibration:
    """Run growing batches until the rate is flat or `seconds` are over; the best of a few runs counts for
    each. Rates are compared with what handing a batch over takes, and told without.

    The first batch is run once more beforehand, since an engine's first run prepares buffers; that is not counted.
    """
    length = min(SEQUENCE_TOKENS, max_length)
    measurements: list[Measurement] = []
    budget, flat, peak = SMALLEST_BUDGET, 0, 0.0
    run(_sample(budget, length, vocabulary_size))
    deadline = clock() + seconds
    while budget <= LARGEST_BUDGET and flat < FLAT_DOUBLINGS:
        rate, last_run = _best_rate(run, _sample(budget, length, vocabulary_size), deadline, clock)
        measurements.append(Measurement(budget, rate))
        served = _served(measurements[-1])
        flat = flat + 1 if served < peak * LEAST_GAIN else 0
        peak = max(peak, served)
        # The next batch takes about twice as long as this one.
        if clock() + 2 * last_run > deadline:
            break
        budget *= 2
    chosen = next(m for m in measurements if _served(m) >= SHARE_OF_PEAK * peak)
    return Calibration(chosen.budget, chosen.tokens_per_second, tuple(measurements))


def _served(measured: Measurement) -> float:
    """Tokens a second of such batches, one after the other."""
    return measured.budget / (measured.budget / measured.tokens_per_second + HANDING_OVER_SECONDS)


def rate(
    run: Callable[[PackedBatch], object],
    *,
    max_length: int,
    vocabulary_size: int,
    clock: Callable[[], float],
) -> float:
    """Tokens per second of one typical text, the best of a few runs."""
    length = min(SEQUENCE_TOKENS, max_length)
    return _best_rate(run, _sample(length, length, vocabulary_size), math.inf, clock)[0]


def warm_up(run: Callable[[PackedBatch], object], *, max_length: int, vocabulary_size: int) -> None:
    """One sequence of the greatest length, and one each of some others: buffers of the worst case and of batches of
    mixed length exist before the first request."""
    run(_sample(max_length, max_length, vocabulary_size))
    lengths = [min(length, max_length) for length in WARM_UP_LENGTHS]
    ids = _ids(sum(lengths), vocabulary_size)
    run(PackedBatch.pack(np.split(ids, np.cumsum(lengths)[:-1])))


def _sample(tokens: int, length: int, vocabulary_size: int) -> PackedBatch:
    return PackedBatch.pack(np.split(_ids(tokens, vocabulary_size), range(length, tokens, length)))


def _ids(tokens: int, vocabulary_size: int) -> Int32Array:
    return (np.arange(tokens, dtype=np.int64) * 7919 % vocabulary_size).astype(np.int32)


def _best_rate(
    run: Callable[[PackedBatch], object], batch: PackedBatch, deadline: float, clock: Callable[[], float]
) -> tuple[float, float]:
    """Tokens per second of the fastest run, and the seconds of the last one."""
    best = 0.0
    for _ in range(REPEATS):
        started = clock()
        run(batch)
        took = clock() - started
        best = max(best, batch.tokens / max(took, 1e-9))
        if clock() + took > deadline:
            break
    return best, took
