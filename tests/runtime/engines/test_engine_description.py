"""The description of an engine: the name of what computes vectors, and the distance that was measured of it."""

from __future__ import annotations

import pytest

from embedserve_runtime.forward.engine import EngineDescription, MeasuredParity


@pytest.mark.parametrize(
    ("precision", "artifact", "want"),
    [
        ("float32", None, "float32"),
        ("bfloat16", None, "bfloat16"),
        ("fp8", None, "fp8"),
        ("int8", "1f0c54d0a9e2", "int8@1f0c54d0a9e2"),
        ("as stored", None, "stored"),
    ],
)
def test_one_word_names_the_precision_and_the_converted_file(
    precision: str, artifact: str | None, want: str
) -> None:
    assert EngineDescription("any", "cpu", precision, artifact=artifact).compute_precision == want


@pytest.mark.parametrize(
    ("measured", "runs", "is_told"),
    [
        pytest.param("fp8", "fp8", True, id="of what runs"),
        pytest.param("fp8", "bfloat16", False, id="of what was measured and is too far to run"),
        pytest.param(None, "bfloat16", False, id="of nothing"),
    ],
)
def test_the_distance_is_told_of_what_runs_alone(measured: str | None, runs: str, is_told: bool) -> None:
    parity = None if measured is None else MeasuredParity(measured, "bfloat16", 0.9995, 0.9991, "texts.txt")
    assert (EngineDescription("torch", "cuda", runs, parity=parity).served_parity is not None) is is_told
