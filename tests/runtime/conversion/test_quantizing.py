"""8-bit products against the products that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from embedserve_runtime.conversion.quantizing import (
    BlockQuantization,
    ObservedRanges,
    StaticQuantization,
    choose_static,
    compute_quantization_error,
    quantize_blocks,
    quantize_static,
)
from embedserve_runtime.forward.arrays import FloatArray
from tests.support.tolerances import EIGHT_BIT_PRODUCT_ERROR

SOURCE = np.random.default_rng(0)
COLUMNS, OUTPUTS = 48, 40
WEIGHT: FloatArray = SOURCE.normal(size=(COLUMNS, OUTPUTS)).astype(np.float32)


def inputs(outliers: float = 1.0, offset: float = 0.0) -> FloatArray:
    """200 tokens; two of the columns are `outliers` times larger than the others."""
    values = SOURCE.uniform(-1, 1, size=(200, COLUMNS)) + offset
    values[:, [3, 17]] *= outliers
    return values.astype(np.float32)


def seen(rows: FloatArray) -> ObservedRanges:
    return ObservedRanges(np.minimum(rows.min(axis=0), 0), np.maximum(rows.max(axis=0), 0), rows)


@pytest.mark.parametrize(
    ("outliers", "offset"),
    [
        pytest.param(1, 0, id="columns of one size"),
        pytest.param(1, 1, id="all above zero"),
        pytest.param(1, -1, id="all below zero"),
        pytest.param(30, 0, id="two columns much larger"),
        pytest.param(0, 0, id="two columns of zeros"),
    ],
)
def test_the_best_static_form_is_close(outliers: float, offset: float) -> None:
    rows = inputs(outliers, offset)
    form, error = choose_static(WEIGHT, seen(rows), 127)
    assert error <= EIGHT_BIT_PRODUCT_ERROR
    assert compute_quantization_error(WEIGHT, rows, form, 127) <= EIGHT_BIT_PRODUCT_ERROR


@pytest.mark.parametrize("greatest", [127, 63])
def test_a_static_form_is_scored_with_the_weights_that_are_written(greatest: int) -> None:
    rows = inputs(outliers=30)
    form, scored_error = choose_static(WEIGHT, seen(rows), greatest)
    quantized, scales = quantize_static(WEIGHT, form, greatest)
    assert form.factors is not None
    levels = np.clip(np.rint(rows / form.factors / form.scale) + form.zero_point, 0, 255) - form.zero_point
    dequantized = (levels * form.scale) @ (quantized * scales)
    want = rows @ WEIGHT
    error = np.mean(((dequantized - want) ** 2).sum(axis=1) / (want**2).sum(axis=1))
    # Scored on the columns of a sample, here all of them.
    assert scored_error == pytest.approx(error, rel=1e-3)
    assert np.abs(quantized).max() == greatest


def test_large_columns_are_smoothed_and_columns_of_one_size_are_not() -> None:
    rows = inputs(outliers=30)
    plain = StaticQuantization(None, np.float32((rows.max() - rows.min()) / 255), 128)
    form, error = choose_static(WEIGHT, seen(rows), 127)
    assert form.factors is not None
    assert error * 5 < compute_quantization_error(WEIGHT, rows, plain, 127)
    assert choose_static(WEIGHT, seen(inputs()), 127)[0].factors is None


def test_inputs_a_little_beyond_those_of_calibration_are_still_in_range() -> None:
    rows = inputs()
    form, error = choose_static(WEIGHT, seen(rows), 127)
    assert compute_quantization_error(WEIGHT, rows * np.float32(1.1), form, 127) <= 2 * error


@pytest.mark.parametrize("greatest", [127, 63])
def test_static_weights_use_the_levels_that_are_given(greatest: int) -> None:
    quantized, scales = quantize_static(WEIGHT, StaticQuantization(None, np.float32(1), 0), greatest)
    assert np.abs(quantized).max(axis=0).tolist() == [greatest] * OUTPUTS
    assert np.abs(quantized * scales - WEIGHT).max() <= scales.max() / 2 + 1e-6


@pytest.mark.parametrize("size", [16, 32, 128])
def test_blocks_hold_the_weights_and_zeros_behind_them(size: int) -> None:
    quantized, scales = quantize_blocks(WEIGHT, BlockQuantization(size))
    blocks = -(-COLUMNS // size)
    assert quantized.shape == (OUTPUTS, blocks, size)
    values = ((quantized.astype(np.float32) - 128) * scales[..., None]).reshape(OUTPUTS, -1)
    assert np.abs(values[:, :COLUMNS].T - WEIGHT).max() <= scales.max() / 2 + 1e-6
    assert not values[:, COLUMNS:].any()


def test_a_column_of_zeros_stays_zero() -> None:
    weight = WEIGHT.copy()
    weight[:, 5] = 0
    quantized, scales = quantize_static(weight, StaticQuantization(None, np.float32(1), 0), 127)
    assert np.isfinite(scales).all()
    assert not quantized[:, 5].any()
