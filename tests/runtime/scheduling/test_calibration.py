"""The budget is the smallest that reaches 95 % of the peak, whatever shape the engine's rate has."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier

import numpy as np
import pytest

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.scheduling.calibration import (
    MAX_WARM_UP_TOKENS_ON_CPU,
    MIN_BUDGET,
    SampleTexts,
    calibrate,
    limit_warm_up,
    measure_rate,
    warm_up,
)


class FakeEngine:
    """Advances its own clock by what a batch costs; nothing waits."""

    def __init__(self, seconds_of: Callable[[int], float]) -> None:
        self._seconds_of = seconds_of
        self.now = 0.0
        self.batches: list[PackedBatch] = []

    def __call__(self, batch: PackedBatch) -> FloatArray:
        self.batches.append(batch)
        self.now += self._seconds_of(batch.tokens)
        return np.zeros((len(batch.cu_seqlens) - 1, 1), dtype=np.float32)

    def clock(self) -> float:
        return self.now


class TwoAtOnce(FakeEngine):
    """Waits for a second batch, which costs nothing more."""

    def __init__(self, seconds_of: Callable[[int], float]) -> None:
        super().__init__(seconds_of)
        self._both = Barrier(2)

    def __call__(self, batch: PackedBatch) -> FloatArray:
        if self._both.wait(60) == 0:
            return super().__call__(batch)
        return np.zeros((len(batch.cu_seqlens) - 1, 1), dtype=np.float32)


RATES = [
    pytest.param(lambda tokens: tokens / 10_000, MIN_BUDGET, id="a flat rate needs no large batch"),
    pytest.param(
        lambda tokens: 0.01 + tokens / 100_000, 16_384, id="a fixed cost a batch is spread thin enough"
    ),
    pytest.param(lambda tokens: max(tokens, 2_048) / 100_000, 2_048, id="the engine is full at one size"),
    pytest.param(lambda tokens: tokens / 10_000_000, 16_384, id="a run takes less than handing a batch over"),
    pytest.param(
        lambda tokens: tokens / (100_000 if tokens <= 1_024 else 50_000), 256, id="larger batches are slower"
    ),
]


@pytest.mark.parametrize(("seconds_of", "want_budget"), RATES)
def test_the_smallest_budget_near_the_peak_is_taken(
    seconds_of: Callable[[int], float], want_budget: int
) -> None:
    engine = FakeEngine(seconds_of)
    calibrated = calibrate(engine, SampleTexts(512, 100), concurrency=1, seconds=1_000.0, clock=engine.clock)
    assert calibrated.budget == want_budget
    assert calibrated.tokens_per_second == pytest.approx(want_budget / seconds_of(want_budget))


def test_an_engine_that_runs_two_batches_at_once_is_measured_with_two() -> None:
    engine = TwoAtOnce(lambda tokens: max(tokens, 1_024) / 100_000)
    calibrated = calibrate(engine, SampleTexts(512, 100), concurrency=2, seconds=1_000.0, clock=engine.clock)
    assert calibrated.budget == 1_024
    assert calibrated.tokens_per_second == pytest.approx(200_000)
    of_texts = measure_rate(engine, SampleTexts(512, 100), concurrency=2, clock=engine.clock)
    assert of_texts == pytest.approx(2 * 128 / 1_024 * 100_000)


def test_a_slow_engine_is_not_measured_for_longer_than_allowed() -> None:
    engine = FakeEngine(lambda tokens: 1.0 + tokens / 1_000)
    calibrated = calibrate(engine, SampleTexts(512, 100), concurrency=1, seconds=5.0, clock=engine.clock)
    assert calibrated.budget in {measurement.budget for measurement in calibrated.measurements}
    assert engine.now <= 5.0 + 3 * (1.0 + 512 / 1_000)


@pytest.mark.parametrize("max_length", [8, 512])
def test_samples_fit_the_model(max_length: int) -> None:
    engine = FakeEngine(lambda tokens: tokens / 1_000)
    texts = SampleTexts(max_length, 100)
    warm_up(engine, texts, max_length)
    calibrate(engine, texts, concurrency=1, seconds=10.0, clock=engine.clock)
    assert engine.batches[0].lengths.tolist() == [max_length]
    for batch in engine.batches:
        assert batch.lengths.min() >= 1
        assert batch.lengths.max() <= max_length
        assert 0 <= batch.token_ids.min() <= batch.token_ids.max() < 100


@pytest.mark.parametrize(
    ("max_length", "device", "want"),
    [(8, "cpu", 8), (512, "cpu", 512), (32_768, "cpu", MAX_WARM_UP_TOKENS_ON_CPU), (32_768, "cuda", 32_768)],
)
def test_a_warm_up_on_a_cpu_runs_no_text_that_takes_gigabytes(
    max_length: int, device: str, want: int
) -> None:
    assert limit_warm_up(max_length, device) == want


@pytest.mark.parametrize("longest", [8, 512])
def test_a_text_of_the_limit_and_a_mix_have_run_before_the_first_request(longest: int) -> None:
    lengths: list[list[int]] = []
    warm_up(lambda batch: lengths.append(batch.lengths.tolist()), SampleTexts(512, 100), longest)
    alone, mixed = lengths
    assert alone == [longest]
    assert len(mixed) > 1
    assert min(mixed) < max(mixed) <= longest


def test_no_batch_is_tried_that_there_is_no_memory_for() -> None:
    engine = FakeEngine(lambda tokens: 1.0)
    texts = SampleTexts(512, 100, max_batch_tokens=1_000)
    calibrated = calibrate(engine, texts, concurrency=1, seconds=1_000.0, clock=engine.clock)
    assert max(measured.budget for measured in calibrated.measurements) == 512
