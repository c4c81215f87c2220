"""`embedserve self-test`: what agrees is ok, what does not has failed, and what could not be looked at is named."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from embedserve_runtime import selftest
from embedserve_runtime.engines.checks import State, near


def test_everything_that_is_here_is_checked_and_the_rest_is_named() -> None:
    out = io.StringIO()
    assert selftest.run(out) == 0
    lines = out.getvalue().splitlines()
    assert [line for line in lines if line.startswith("ok") and "torch engine on the CPU" in line]
    unchecked = [line for line in lines if line.startswith("not checked")]
    if not torch.cuda.is_available():
        assert any("fused kernels" in line and "sees no CUDA device" in line for line in unchecked)


@pytest.mark.parametrize(
    ("factors", "state"),
    [
        pytest.param([1.0, 2.0], State.OK, id="the same directions"),
        pytest.param([1.0, -1.0], State.FAILED, id="one row differs"),
        pytest.param([1.0, np.nan], State.FAILED, id="not a number"),
    ],
)
def test_hidden_states_are_near_when_every_row_is(factors: list[float], state: State) -> None:
    want = np.array([[1.0, 2.0], [3.0, -1.0]], dtype=np.float32)
    assert near("x", want * np.array(factors, dtype=np.float32)[:, None], want, 0.999).state is state
