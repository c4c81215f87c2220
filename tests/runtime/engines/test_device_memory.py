"""The torch engine when a device's memory runs out: halves, a limit for a while, and its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embedserve_runtime.engines.torch.engine import TorchEngine
from embedserve_runtime.engines.torch.graphs import DeviceOutput, OutputLevel
from embedserve_runtime.engines.torch.memory import (
    FIRST_WAIT_S,
    MAX_WAIT_S,
    LoweredBudget,
    MemoryBudget,
    choose_wait,
    lower_budget,
    split_in_halves,
)
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch, TokenSequence
from embedserve_runtime.forward.engine import MemoryStatus
from tests.runtime.engines.test_forms import LAYERS, MAX_TOKENS, VOCABULARY, encoder_of
from tests.runtime.engines.test_torch_engine import saved

LARGEST = 2**17
"""Tokens, as many as a budget of a batch may have."""


@dataclass
class SetClock:
    """A clock that a test sets, in seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def batch_of(*lengths: int) -> PackedBatch:
    ids = np.arange(1, sum(lengths) + 1, dtype=np.int32)
    return PackedBatch.pack(np.split(ids, np.cumsum(lengths)[:-1]))


def lengths_of(parts: list[PackedBatch]) -> list[list[int]]:
    return [part.lengths.tolist() for part in parts]


def test_a_batch_that_did_not_fit_lowers_the_budget_and_later_ones_are_cut_to_it_for_a_while() -> None:
    clock, batch = SetClock(), batch_of(3, 3, 2, 9, 1, 2)
    budget = MemoryBudget(clock)
    assert budget.split(batch) == [batch]
    budget.lower(batch)
    assert budget.status == MemoryStatus(failures=1, max_batch_tokens=10)
    parts = budget.split(batch)
    assert lengths_of(parts) == [[3, 3, 2], [9, 1], [2]]
    assert np.concatenate([part.token_ids for part in parts]).tolist() == batch.token_ids.tolist()
    clock.now = FIRST_WAIT_S
    assert budget.status == MemoryStatus(failures=1, max_batch_tokens=None)
    assert budget.split(batch) == [batch]


def test_a_sequence_longer_than_the_budget_runs_alone_and_cannot_lower_it() -> None:
    budget = MemoryBudget(SetClock())
    budget.lower(batch_of(4, 4))
    assert lengths_of(budget.split(batch_of(2, 7, 1))) == [[2], [7], [1]]
    budget.lower(batch_of(7))
    assert budget.status == MemoryStatus(failures=2, max_batch_tokens=4)


def test_the_budget_grows_to_the_largest_batch_that_there_was_and_not_just_to_the_one_that_failed() -> None:
    clock = SetClock()
    budget = MemoryBudget(clock)
    budget.split(batch_of(*[10] * 10))
    small = batch_of(10, 10)
    budget.split(small)
    budget.lower(small)
    limits = []
    for waits in range(5):
        clock.now = waits * FIRST_WAIT_S
        limits.append(budget.status.max_batch_tokens)
    assert limits == [10, 20, 40, 80, None]


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        pytest.param(0, 1000, id="at once"),
        pytest.param(59.9, 1000, id="just before the first doubling"),
        pytest.param(60, 2000, id="at the first doubling"),
        pytest.param(179.9, 4000, id="between two"),
        pytest.param(180, None, id="where doubling reaches the original"),
        pytest.param(1e9, None, id="long after"),
    ],
)
def test_a_lowered_budget_doubles_after_each_quiet_wait_until_it_ends(
    seconds: float, want: int | None
) -> None:
    lowered = LoweredBudget(max_batch_tokens=1000, original_tokens=8000, failed_at=7.0, wait_s=60.0)
    assert lowered.compute_max_batch_tokens(7.0 + seconds) == want


@pytest.mark.parametrize(
    ("wait", "seconds", "want"),
    [
        pytest.param(60, 59.9, 60, id="nothing had grown: more halvings of one cause"),
        pytest.param(60, 60, 120, id="right after a doubling"),
        pytest.param(60, 179.9, 120, id="before all doublings"),
        pytest.param(60, 180, 120, id="right after the last doubling"),
        pytest.param(60, 239.9, 120, id="less than a wait after the last doubling"),
        pytest.param(60, 240, FIRST_WAIT_S, id="a wait after the last doubling without a failure"),
        pytest.param(480, 480, MAX_WAIT_S, id="up to the bound"),
        pytest.param(MAX_WAIT_S, MAX_WAIT_S, MAX_WAIT_S, id="at the bound"),
    ],
)
def test_a_failure_after_a_doubling_doubles_the_wait_up_to_a_bound(
    wait: float, seconds: float, want: float
) -> None:
    former = LoweredBudget(max_batch_tokens=1000, original_tokens=8000, failed_at=7.0, wait_s=wait)
    assert choose_wait(former, 7.0 + seconds) == want


def test_memory_that_stays_short_is_tried_ever_more_seldom() -> None:
    lowered, now, pauses = lower_budget(None, 8000, 8000, 0.0), 0.0, []
    for _ in range(7):
        pauses.append(lowered.restored_at - now)
        now = lowered.restored_at
        lowered = lower_budget(lowered, 8000, 8000, now)
    assert pauses == [30, 60, 120, 240, 480, 600, 600]


failures = st.lists(
    st.tuples(st.floats(0, 2 * MAX_WAIT_S), st.integers(2, LARGEST)),
    min_size=1,
    max_size=20,
)


@given(failures, st.floats(0, 20 * MAX_WAIT_S))
def test_whatever_fails_when_the_budget_stays_between_one_token_and_the_original_and_comes_back(
    failures: list[tuple[float, int]], later: float
) -> None:
    lowered: LoweredBudget | None = None
    now, max_seen = 0.0, 0
    for seconds, offered in failures:
        now += seconds
        limit = None if lowered is None else lowered.compute_max_batch_tokens(now)
        max_seen = max(max_seen, offered)
        failed = min(offered, limit or offered)
        lowered = lower_budget(lowered, failed, max_seen, now)
        assert lowered.max_batch_tokens == max(failed // 2, 1)
        assert FIRST_WAIT_S <= lowered.wait_s <= MAX_WAIT_S
    assert lowered is not None
    at, after = lowered.compute_max_batch_tokens(now), lowered.compute_max_batch_tokens(now + later)
    for tokens in (at, after):
        assert tokens is None or 1 <= tokens < max_seen
    # It only grows.
    assert after is None or (at is not None and at <= after)
    assert lowered.compute_max_batch_tokens(lowered.restored_at) is None
    assert lowered.restored_at <= now + max_seen.bit_length() * MAX_WAIT_S


@pytest.mark.parametrize(
    ("lengths", "want"),
    [
        pytest.param((5,), [[5]], id="one sequence stays whole"),
        pytest.param((1, 1, 1, 1), [[1, 1], [1, 1]], id="equal ones"),
        pytest.param((9, 1, 1), [[9], [1, 1]], id="a long first one"),
        pytest.param((1, 1, 9), [[1, 1], [9]], id="a long last one"),
    ],
)
def test_halves_have_about_the_same_tokens(lengths: tuple[int, ...], want: list[list[int]]) -> None:
    assert lengths_of(split_in_halves(batch_of(*lengths))) == want


def test_parts_keep_types_and_what_pooling_leaves_out() -> None:
    types = np.array([0, 1], dtype=np.int32)
    sequences = [TokenSequence(types, types, pool_start) for pool_start in (1, 0)]
    first, second = split_in_halves(PackedBatch.pack(sequences))
    assert first.pool_starts is not None
    assert second.pool_starts is not None
    assert (first.pool_starts.tolist(), second.pool_starts.tolist()) == ([1], [0])
    assert second.token_types is not None
    assert second.token_types.tolist() == [0, 1]


@dataclass
class DeviceMemory:
    """A device that has room for the results of so many tokens at a time; `tried` are those of each run."""

    max_batch_tokens: int
    tried: list[int] = field(default_factory=list)

    def take(self, output: DeviceOutput, part: PackedBatch) -> FloatArray:
        self.tried.append(part.tokens)
        if part.tokens > self.max_batch_tokens:
            raise torch.OutOfMemoryError(f"{part.tokens} tokens do not fit")
        return output.states.float().numpy()


@pytest.fixture
def engine(tmp_path: Path) -> TorchEngine:
    encoder = encoder_of(LAYERS["gated"])
    return TorchEngine(encoder, saved(tmp_path, encoder), torch.device("cpu"), torch.float32)


def random_sequences(count: int) -> PackedBatch:
    source = np.random.default_rng(0)
    return PackedBatch.pack(
        [source.integers(0, VOCABULARY, MAX_TOKENS).astype(np.int32) for _ in range(count)]
    )


def test_the_engine_halves_until_it_fits_stays_there_for_a_while_and_grows_back(engine: TorchEngine) -> None:
    clock, batch, memory = SetClock(), random_sequences(8), DeviceMemory(3 * MAX_TOKENS)
    engine.budget = MemoryBudget(clock)
    want = engine.forward(batch)

    def run() -> list[int]:
        """Sequences of each run of the batch."""
        memory.tried.clear()
        parts = engine.run(batch, memory.take, forward_output=OutputLevel.HIDDEN)
        np.testing.assert_allclose(np.concatenate(parts), want, atol=1e-5)
        return [tokens // MAX_TOKENS for tokens in memory.tried]

    assert run() == [8, 4, 2, 2, 2, 2]
    assert engine.memory == MemoryStatus(failures=2, max_batch_tokens=2 * MAX_TOKENS)
    assert run() == [2, 2, 2, 2]
    memory.max_batch_tokens = batch.tokens
    clock.now += FIRST_WAIT_S
    assert run() == [4, 4]
    clock.now += FIRST_WAIT_S
    assert run() == [8]
    assert engine.memory == MemoryStatus(failures=2, max_batch_tokens=None)


def test_a_single_sequence_that_does_not_fit_is_tried_twice_and_fails(engine: TorchEngine) -> None:
    memory = DeviceMemory(MAX_TOKENS - 1)
    with pytest.raises(EngineFailure, match=f"torch failed on a batch of {MAX_TOKENS} tokens: .* do not fit"):
        engine.run(random_sequences(1), memory.take, forward_output=OutputLevel.HIDDEN)
    assert memory.tried == [MAX_TOKENS, MAX_TOKENS]
    assert engine.memory == MemoryStatus(failures=1)
