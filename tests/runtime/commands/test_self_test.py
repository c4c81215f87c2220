"""`embedserve self-test`: what agrees is ok, what does not has failed, and what could not be looked at is named."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from embedserve_runtime.commands import self_test
from embedserve_runtime.engines.checks import CheckStatus, compare_hidden_states
from embedserve_runtime.engines.torch import checks


def test_everything_that_is_here_is_checked_and_the_rest_is_named() -> None:
    out = io.StringIO()
    assert self_test.run(out) == 0
    lines = out.getvalue().splitlines()
    assert [line for line in lines if line.startswith("ok") and "torch engine on the CPU" in line]
    unchecked = [line for line in lines if line.startswith("not checked")]
    if not torch.cuda.is_available():
        assert any("fused kernels" in line and "sees no CUDA device" in line for line in unchecked)


@pytest.mark.parametrize(
    ("factors", "status"),
    [
        pytest.param([1.0, 2.0], CheckStatus.OK, id="the same directions"),
        pytest.param([1.0, -1.0], CheckStatus.FAILED, id="one row differs"),
        pytest.param([1.0, np.nan], CheckStatus.FAILED, id="not a number"),
    ],
)
def test_hidden_states_are_near_when_every_row_is(factors: list[float], status: CheckStatus) -> None:
    want = np.array([[1.0, 2.0], [3.0, -1.0]], dtype=np.float32)
    assert (
        compare_hidden_states("x", want * np.array(factors, dtype=np.float32)[:, None], want, 0.999).status
        is status
    )


FROM_AMPERE_ON = "sm_80 sm_90 sm_100 sm_110 sm_120"


@pytest.mark.parametrize(
    ("machine", "built", "status", "detail"),
    [
        pytest.param(
            "aarch64", FROM_AMPERE_ON, CheckStatus.OK, "8.0, 8.6, 8.9, 9.0, 10.0, 12.0", id="ARM's wheel"
        ),
        pytest.param("x86_64", f"sm_75 {FROM_AMPERE_ON}", CheckStatus.OK, "7.5, 8.0", id="x86's wheel"),
        pytest.param(
            "x86_64", FROM_AMPERE_ON, CheckStatus.FAILED, "no code for compute capability 7.5", id="too new"
        ),
        pytest.param(
            "aarch64", "sm_90a", CheckStatus.FAILED, "8.0, 8.6, 8.9, 10.0, 12.0", id="one generation"
        ),
        pytest.param("aarch64", "", CheckStatus.NOT_CHECKED, "built without CUDA", id="a wheel for CPUs"),
    ],
)
def test_what_torch_has_code_for_is_what_the_classes_of_the_architecture_need(
    machine: str, built: str, status: CheckStatus, detail: str
) -> None:
    check = checks.check_generations(machine, built)
    assert (check.status, detail in check.detail) == (status, True), check
