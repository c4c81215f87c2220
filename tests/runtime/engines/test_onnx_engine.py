"""What only the ONNX engine must keep; that its numbers are right is in `test_encoders.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from embedserve_runtime.engines.onnx import engine as engine_module
from embedserve_runtime.engines.onnx.graph import build
from tests.runtime.engines.cases import BERT
from tests.runtime.engines.engines import engine_of


def test_the_session_keeps_no_pointer_into_the_arrays_that_it_was_built_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BERT[0]
    case.build(tmp_path)
    handed_over: list[NDArray[np.generic]] = []

    def build_and_remember(*arguments: object) -> object:
        model, initializers = build(*arguments)  # type: ignore[arg-type]
        writable = {name: value.copy() for name, value in initializers.items()}
        handed_over.extend(writable.values())
        return model, writable

    monkeypatch.setattr(engine_module, "build", build_and_remember)
    engine, batch = engine_of(tmp_path, "onnx"), case.batch()
    before = engine.forward(batch)
    for array in handed_over:
        array.fill(np.nan)
    np.testing.assert_array_equal(engine.forward(batch), before)
