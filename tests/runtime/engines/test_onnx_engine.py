"""What only the ONNX engine must keep; that its numbers are right is in `test_encoders.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from embedserve_runtime.errors import ConfigError
from tests.runtime.engines.cases import BERT
from tests.runtime.engines.engines import engine_of
from tests.support.tolerances import TINY_MODEL_MAX_ABS_DIFF


def test_the_weights_file_is_gone_once_the_session_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BERT[0]
    reference = case.build(tmp_path / "model")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    engine, batch = engine_of(tmp_path / "model", "onnx"), case.batch()
    assert list((tmp_path / "temporary").iterdir()) == []
    assert np.abs(engine.forward(batch) - reference(batch)).max() <= TINY_MODEL_MAX_ABS_DIFF


def test_no_room_for_the_weights_file_stops_the_start_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BERT[0].build(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    with pytest.raises(ConfigError, match=r"the weights \(\d+ bytes\) cannot be written to .*set TMPDIR"):
        engine_of(tmp_path, "onnx")
