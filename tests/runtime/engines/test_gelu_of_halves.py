"""The polynomial that stands for GELU where the product for Hopper writes e4m3: in float16, step by step as the
kernel's assembly has it, without a GPU."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.filterwarnings("ignore:overflow"),
]

# Of GELU, anywhere and on average over normal numbers, which rounding to e4m3 changes by 0.017 on average.
MAX_ERROR = 0.004
MAX_MEAN_ERROR = 0.001


def all_halves() -> NDArray[np.float16]:
    """Every finite number of float16."""
    values = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    return values[np.isfinite(values)]


def fused(a: NDArray[np.float16], b: NDArray[np.float16], c: float) -> NDArray[np.float16]:
    """a b + c, rounded once."""
    return (a.astype(np.float64) * b.astype(np.float64) + c).astype(np.float16)


def gelu_of_halves(x: NDArray[np.float16]) -> NDArray[np.float16]:
    from embedserve_runtime.engines.torch.fused.kernels.hopper import GELU_COEFFICIENTS

    *coefficients, highest = GELU_COEFFICIENTS
    square, power = x * x, np.full_like(x, highest)
    for coefficient in reversed(coefficients):
        power = fused(power, square, coefficient)
    return x * np.clip(fused(power, x, 0.5), np.float16(0), np.float16(1))


def gelu(x: NDArray[np.float16]) -> NDArray[np.float64]:
    wide: NDArray[np.float64] = torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy()
    return wide


def test_the_coefficients_are_numbers_of_float16() -> None:
    from embedserve_runtime.engines.torch.fused.kernels.hopper import GELU_COEFFICIENTS

    assert [float(np.float16(coefficient)) for coefficient in GELU_COEFFICIENTS] == list(GELU_COEFFICIENTS)


def test_the_polynomial_is_gelu_by_erf_to_far_below_the_rounding_to_e4m3() -> None:
    x = all_halves()
    near = np.abs(x) < 8
    assert np.abs(gelu_of_halves(x[near]) - gelu(x[near])).max() < MAX_ERROR
    normal = np.random.default_rng(1).standard_normal(100_000).astype(np.float16)
    assert np.sqrt(np.mean((gelu_of_halves(normal) - gelu(normal)) ** 2)) < MAX_MEAN_ERROR


def test_a_large_number_is_kept_and_its_negative_is_nothing() -> None:
    x = all_halves()
    large = x[x >= 8]
    np.testing.assert_array_equal(gelu_of_halves(large), large)
    np.testing.assert_array_equal(gelu_of_halves(-large), np.zeros_like(large))
