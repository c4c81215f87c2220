"""Every served kind of the census in 16 bit on a CUDA device, against the same folder in float32 on the CPU, which
test_census.py compares with its authors' loader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from embedserve_runtime.config import load_config
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.loading.runners import load_runner
from tests.census.built import Built, Results
from tests.census.kinds import build_kind, judge_kind
from tests.census.repositories import Kind, list_kinds
from tests.census.test_census import ELSEWHERE
from tests.support.tolerances import SIXTEEN_BIT_MIN_COSINE

if not torch.cuda.is_available():
    pytest.skip("required a CUDA device", allow_module_level=True)


def _run(built: Built, device: str) -> Results:
    assert built.results is not None, "what is served has results"
    engine = {"kind": "torch", "device": device, "threads": 4}
    flags = {"model": {"source": str(built.folder)}, "engine": engine}
    return built.results(load_runner(load_config(flags=flags)))


def _compute_cosines(rows: FloatArray, expected: FloatArray) -> FloatArray:
    """Cosines of rows; those that are zero in both count as equal. Scores are one row: their order is what counts."""
    ours, theirs = (np.atleast_2d(array).astype(np.float64) for array in (rows, expected))
    norms = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    products = (ours * theirs).sum(axis=-1)
    cosines: FloatArray = np.divide(products, norms, out=np.ones_like(norms), where=norms > 0)
    return cosines


@pytest.mark.parametrize("kind", [pytest.param(kind, id=str(kind)) for kind in list_kinds()])
def test_what_is_served_is_as_near_in_16_bit_as_is_promised(kind: Kind, tmp_path: Path) -> None:
    built = build_kind(kind, tmp_path)
    if not judge_kind(built).is_served or built.is_table or kind in ELSEWHERE:
        pytest.skip("refused, without layers, or compared in a test of its own")
    on_card, exact = _run(built, "cuda"), _run(built, "cpu")
    assert [array.shape for array in on_card] == [array.shape for array in exact]
    # A score by late interaction is a sum over the vectors of a text's tokens; each other vector counts by itself.
    choose = np.mean if kind.task == "late-interaction" else np.min
    cosines = [_compute_cosines(ours, theirs) for ours, theirs in zip(on_card, exact, strict=True)]
    assert min(float(choose(of_array)) for of_array in cosines) >= SIXTEEN_BIT_MIN_COSINE
