"""The polynomial that stands for GELU in the product for Hopper, in float32 as the kernel has it, without a GPU."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
]

# Half of what separates two bfloat16 between 1/64 and 1/32: less than any rounding of a result that counts.
MOST_ERROR = 2.0**-14


def gelu(values: NDArray[np.float32]) -> NDArray[np.float32]:
    from embedserve_runtime.engines.torch.fused.kernels.hopper import SHARE

    *others, highest = SHARE.value
    square, power = values * values, np.full_like(values, highest)
    for coefficient in reversed(others):
        power = power * square + np.float32(coefficient)
    share: NDArray[np.float32] = np.clip(np.float32(0.5) + values * power, 0, 1)
    return values * share


def test_the_polynomial_is_gelu_by_erf_to_within_the_rounding_of_a_result() -> None:
    values = np.linspace(-10, 10, 100_001, dtype=np.float32)
    want = torch.nn.functional.gelu(torch.from_numpy(values).double()).numpy()
    assert np.abs(gelu(values) - want).max() < MOST_ERROR


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_large_value_is_kept_and_its_negative_is_nothing() -> None:
    values = np.geomspace(6, 1e30, 1000, dtype=np.float32)
    np.testing.assert_array_equal(gelu(values), values)
    np.testing.assert_array_equal(gelu(-values), np.zeros_like(values))
