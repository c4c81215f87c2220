"""Properties of the ONNX engine alone; that its numbers are right is in `test_encoders.py`."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from embedserve_runtime.engines.onnx import attention_calls
from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.errors import ConfigError, EngineFailure
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder
from tests.runtime.engines.case import Case
from tests.runtime.engines.cases import BERT, CASES
from tests.runtime.engines.engines import engine_of
from tests.support.tolerances import NEIGHBOUR_MAX_ABS_DIFF, TINY_MODEL_MAX_ABS_DIFF

# What attention adds to its scores: nothing, by distance for all layers, for some of them, by queries and keys too.
ONE_OF_EACH_FORM = [
    BERT[0],
    *(
        case
        for case in CASES
        if case.name in ("mpnet, odd heads", "modernbert, window of 5", "deberta, both terms")
    ),
]


def bert_engine(folder: Path, threads: int) -> OnnxEngine:
    BERT[0].build(folder)
    encoder = families.describe(read_folder(folder))
    return OnnxEngine.build(encoder, Weights(encoder, Checkpoint.open(folder)), threads)


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


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_batches_at_once_on_one_session_give_the_rows_of_batches_alone(tmp_path: Path, threads: int) -> None:
    engine = bert_engine(tmp_path, threads)
    random = np.random.default_rng(0)
    batches = [
        PackedBatch.pack([random.integers(0, 20, length).astype(np.int32) for length in lengths])
        for lengths in ([3], [9, 2, 2], [5] * 6, [7, 1])
    ] * 8
    want_rows = [engine.forward(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for rows, want in zip(pool.map(engine.forward, batches), want_rows, strict=True):
            np.testing.assert_array_equal(rows, want)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_batch_that_fails_among_others_at_once_fails_alone(tmp_path: Path, threads: int) -> None:
    engine = bert_engine(tmp_path, threads)
    good, bad = (PackedBatch.pack([np.full(5, token, dtype=np.int32)]) for token in (1, 10**6))
    want = engine.forward(good)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(engine.forward, batch) for batch in (good, bad, bad, good) * 8]
    for index, future in enumerate(futures):
        if index % 4 in (0, 3):
            np.testing.assert_array_equal(future.result(), want)
        else:
            with pytest.raises(EngineFailure, match=r"failed on a batch of 5 tokens: .*out of data bounds"):
                future.result()


@pytest.mark.parametrize("case", ONE_OF_EACH_FORM, ids=lambda case: case.name)
def test_sequences_of_one_length_give_the_same_rows_as_among_others(tmp_path: Path, case: Case) -> None:
    case.build(tmp_path)
    engine = engine_of(tmp_path, "onnx")
    random = np.random.default_rng(0)
    equal, mixed = (
        [random.integers(0, 20, length).astype(np.int32) for length in lengths]
        for lengths in ([7, 7, 7], [3, 12, 3])
    )
    among_others = engine.forward(PackedBatch.pack([*equal, *mixed]))[:21]
    assert np.abs(engine.forward(PackedBatch.pack(equal)) - among_others).max() <= NEIGHBOUR_MAX_ABS_DIFF


@pytest.mark.parametrize("case", ONE_OF_EACH_FORM, ids=lambda case: case.name)
def test_sequences_too_long_to_attend_in_packed_rows_give_the_same_rows(
    tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.build(tmp_path)
    random = np.random.default_rng(0)
    batch = PackedBatch.pack([random.integers(0, 20, length).astype(np.int32) for length in (3, 12, 3, 7)])
    in_packed_rows = engine_of(tmp_path, "onnx").forward(batch)
    monkeypatch.setattr(attention_calls, "MAX_TOKENS_IN_PLACE", 5)
    assert (
        np.abs(engine_of(tmp_path, "onnx").forward(batch) - in_packed_rows).max() <= TINY_MODEL_MAX_ABS_DIFF
    )


@pytest.mark.parametrize(("threads", "want"), [(1, 1), (2, 2), (8, 2)])
def test_two_batches_run_at_once_where_there_are_threads_for_it(
    tmp_path: Path, threads: int, want: int
) -> None:
    assert bert_engine(tmp_path, threads).description.concurrency == want
