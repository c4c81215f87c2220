"""The load that a server takes on, by the memory that its container may take."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from embedserve_runtime.config import load_config
from embedserve_runtime.errors import MemoryTooSmall
from embedserve_runtime.memory.activation_memory import ActivationSizes
from embedserve_runtime.memory.fitting import (
    MIN_MAX_LENGTH,
    MIN_QUEUE_INPUTS,
    MIN_TOKENS,
    SHARED_BYTES,
    fit_load,
)
from embedserve_runtime.memory.load import MAX_MEASURED_TOKENS, describe_bounds, describe_load
from embedserve_runtime.memory.plan import HEADROOM, plan_memory
from embedserve_runtime.memory.sizes import MIB, ModelSizes, describe_sizes
from embedserve_runtime.scheduling.calibration import MAX_BUDGET
from tests.support.model_shapes import describe_shape
from tests.support.tiny_models import build_card

CONFIG = load_config(flags={"model": {"source": "/models/some"}})
WANTED = describe_load(CONFIG, 8_192, "onnx", 4)
BOUNDS = describe_bounds(CONFIG, WANTED)
GIB = 2**30


@pytest.fixture
def model(tmp_path: Path) -> ModelSizes:
    """BGE-M3: 2.2 GB of weights, 450 MB for a text of 8,192 tokens."""
    return describe_sizes(replace(build_card(), encoder=describe_shape("bge-m3", tmp_path)))


def test_without_a_limit_only_the_settings_bound_the_load(model: ModelSizes) -> None:
    fit = fit_load(model, WANTED, BOUNDS, None)
    assert (fit.load, fit.lowered, fit.max_http_workers, fit.max_concurrency) == (BOUNDS, (), None, None)
    assert MAX_MEASURED_TOKENS == MAX_BUDGET


def test_the_limit_that_the_plan_names_has_room_for_what_was_planned(model: ModelSizes) -> None:
    plan = plan_memory(model, WANTED)
    fit = fit_load(model, WANTED, BOUNDS, plan.limit)
    assert fit.lowered == ()
    assert (fit.load.concurrency, fit.load.max_length) == (WANTED.concurrency, WANTED.max_length)
    assert fit.load.batch_tokens >= WANTED.batch_tokens


def test_with_more_memory_more_may_wait_and_larger_batches_are_tried(model: ModelSizes) -> None:
    fit = fit_load(model, WANTED, BOUNDS, 32 * GIB)
    assert fit.load.batch_tokens > WANTED.batch_tokens
    assert (fit.load.queue_inputs, fit.load.pending_bytes) == (BOUNDS.queue_inputs, BOUNDS.pending_bytes)
    assert fit.max_http_workers is not None
    assert fit.max_http_workers > 8


@pytest.mark.parametrize(
    ("share", "lowered"),
    [
        (0.97, {"batch_tokens"}),
        (0.9, {"batch_tokens", "queue_inputs", "concurrency"}),
        (0.76, {"batch_tokens", "queue_inputs", "concurrency", "max_length"}),
    ],
)
def test_what_costs_least_is_lowered_first(tmp_path: Path, share: float, lowered: set[str]) -> None:
    model = describe_sizes(replace(build_card(), encoder=describe_shape("bge-m3", tmp_path)))
    load = replace(WANTED, batch_tokens=16_384)
    limit = round(share * plan_memory(model, load).limit)
    fit = fit_load(model, load, load, limit)
    changed = {
        name
        for name in ("batch_tokens", "queue_inputs", "concurrency", "max_length")
        if getattr(fit.load, name) < getattr(load, name)
    }
    assert changed <= lowered
    assert len(fit.lowered) == len(changed) > 0
    assert fit.planned * HEADROOM <= limit


def test_too_little_is_refused_with_the_number_that_would_do(model: ModelSizes) -> None:
    with pytest.raises(MemoryTooSmall, match=r"a limit of \d+Mi") as refused:
        fit_load(model, WANTED, BOUNDS, 2 * GIB)
    full, least = (
        int(mebibytes) for mebibytes in re.findall(r"(?:limit of|would do is) (\d+)Mi", refused.value.message)
    )
    assert full == plan_memory(model, WANTED).limit // MIB
    assert fit_load(model, WANTED, BOUNDS, full * MIB).lowered == ()
    assert fit_load(model, WANTED, BOUNDS, least * MIB).planned * HEADROOM <= least * MIB


def test_batches_of_unknown_size_are_not_fitted(model: ModelSizes) -> None:
    assert fit_load(replace(model, activations=None), WANTED, BOUNDS, GIB).load == BOUNDS


# The least load, of which a larger batch would be planned as the same.
@example(weights=117_798_912, token=100, limit=218_513_408, tokens=256, max_length=16)
@given(
    weights=st.integers(0, 40 * GIB),
    token=st.integers(100, 600_000),
    limit=st.integers(64 * MIB, 64 * GIB),
    tokens=st.integers(256, 65_536),
    max_length=st.integers(16, 40_960),
)
def test_whatever_is_served_under_a_limit_stays_within_it_or_is_the_least(
    weights: int, token: int, limit: int, tokens: int, max_length: int
) -> None:
    model = ModelSizes(140 * MIB, weights, 0, weights // 7, 10 * MIB, 1_024, ActivationSizes(token, 0, 0))
    wanted_load = replace(WANTED, batch_tokens=tokens, max_length=max_length)
    try:
        fit = fit_load(model, wanted_load, describe_bounds(CONFIG, wanted_load), limit)
    except MemoryTooSmall:
        assert plan_memory(model, wanted_load).total > limit
        return
    load = fit.load
    is_least = (
        load.batch_tokens <= max(MIN_TOKENS, max_length)
        and load.concurrency == 1
        and load.queue_inputs == MIN_QUEUE_INPUTS
        and load.max_length <= max(MIN_MAX_LENGTH, 0)
    )
    assert is_least or fit.planned * HEADROOM <= limit + 1
    if is_least:
        assert (
            plan_memory(model, replace(load, pending_bytes=0, queue_inputs=0)).total - SHARED_BYTES <= limit
        )
