"""Texts that overflow in reduced precision and not in float32 are computed again there, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.runners.fp32_fallback import (
    MAX_INPUTS,
    MAX_TOKENS,
    FP32Fallback,
    add_fallback,
    find_not_finite,
    limit_indices,
)
from embedserve_runtime.runners.protocol import AsyncBatchRunner
from tests.runtime.pipelines.folders import embed, tokens_of
from tests.runtime.runners.overflowing import FITS, OVERFLOWS, TOO_LARGE, overflowing, runners
from tests.support.in_process_server import serve_in_process
from tests.support.tiny_models import DIMENSIONS
from tests.support.tiny_runners import GatedRun, OverlappingRunner, Run, TinyRunner, build_mean_run
from tests.support.tolerances import TINY_MODEL_MAX_ABS_DIFF


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return overflowing(tmp_path_factory.mktemp("overflowing"))


def test_a_text_that_overflows_in_float16_has_the_vector_of_float32(folder: Path) -> None:
    (reduced,), (exact,) = runners(folder, "float16"), runners(folder, "float32")
    got, want = embed(reduced, [FITS, OVERFLOWS, FITS]), embed(exact, [FITS, OVERFLOWS, FITS])
    assert reduced.engine.precision == "float16"
    assert np.abs(got[1] - want[1]).max() <= TINY_MODEL_MAX_ABS_DIFF
    assert np.abs(got - want).max() <= 0.01
    assert (reduced.recomputed, exact.recomputed) == (1, 0)


def test_hidden_states_are_computed_again_with_the_rest(folder: Path) -> None:
    (reduced,), (exact,) = runners(folder, "float16"), runners(folder, "float32")
    batch = PackedBatch.pack(tokens_of(reduced.card, [OVERFLOWS, FITS]))
    outputs = OutputKind.DENSE | OutputKind.HIDDEN
    got, want = reduced.run(batch, outputs).hidden, exact.run(batch, outputs).hidden
    assert got is not None
    assert want is not None
    assert np.abs(got[0] - want[0]).max() <= TINY_MODEL_MAX_ABS_DIFF
    assert np.abs(got[1] - want[1]).max() <= 0.02


async def test_the_request_is_answered_and_counted(folder: Path) -> None:
    (runner,) = runners(folder, "float16")
    async with serve_in_process(model=runner) as server:
        answer = await server.client.post("/embed", json={"inputs": [OVERFLOWS, FITS]})
        recomputed = server.get_metric("embedserve_recomputed_inputs_total", {"engine": "0"})
    assert answer.status_code == 200
    assert np.isfinite(answer.json()).all()
    assert recomputed == 1


async def test_what_is_no_number_in_float32_either_fails_alone(tmp_path: Path) -> None:
    (runner,) = runners(overflowing(tmp_path, TOO_LARGE), "float16")
    async with serve_in_process(model=runner) as server:
        bad = await server.client.post("/embed", json={"inputs": OVERFLOWS})
        good = await server.client.post("/embed", json={"inputs": "no"})
    assert (bad.status_code, good.status_code) == (500, 200)
    assert "not a finite number" in bad.json()["error"]


def nan_on(token: int) -> Run:
    """Rows of ones, those of sequences with the token without a number."""

    def run(batch: PackedBatch) -> FloatArray:
        rows = np.ones((len(batch.lengths), DIMENSIONS), dtype=np.float32)
        rows[np.logical_or.reduceat(batch.token_ids == token, batch.cu_seqlens[:-1])] = np.nan
        return rows

    return run


def batch_of(*sequences: list[int]) -> PackedBatch:
    return PackedBatch.pack([np.array(sequence, dtype=np.int32) for sequence in sequences])


def test_only_what_is_wrong_is_run_again_and_the_exact_model_is_opened_once() -> None:
    exact, opened = GatedRun(build_mean_run()), []
    exact.release()

    def open_runner() -> Runner:
        opened.append(1)
        return TinyRunner(exact)

    runner = add_fallback(TinyRunner(nan_on(9)), FP32Fallback(open_runner))
    for _ in range(2):
        batch = batch_of([1, 2], [9], [3, 9, 4], [5])
        rows = runner.run(batch, OutputKind.DENSE).dense
        assert rows is not None
        assert np.array_equal(rows[[0, 3]], np.ones((2, DIMENSIONS)))
        assert np.array_equal(rows[[1, 2]], build_mean_run()(batch_of([9], [3, 9, 4])))
    assert opened == [1]
    assert [run.token_ids.tolist() for run in exact.batches] == [[9, 3, 9, 4]] * 2
    assert runner.recomputed == 4


def test_an_engine_that_overlaps_still_does() -> None:
    runner = add_fallback(OverlappingRunner(nan_on(9)), FP32Fallback(lambda: TinyRunner(build_mean_run())))
    assert isinstance(runner, AsyncBatchRunner)
    assert runner.max_in_flight == 2
    under_way = [runner.submit(batch_of(ids), OutputKind.DENSE) for ids in ([9], [1])]
    for run in under_way:
        rows = run.results().dense
        assert rows is not None
        assert np.isfinite(rows).all()
    assert runner.recomputed == 1


def test_a_model_that_cannot_be_opened_in_float32_is_tried_once() -> None:
    tried = []

    def open_runner() -> Runner:
        tried.append(1)
        raise EngineFailure("no memory for it")

    runner = add_fallback(TinyRunner(nan_on(9)), FP32Fallback(open_runner))
    for _ in range(2):
        rows = runner.run(batch_of([9], [1]), OutputKind.DENSE).dense
        assert rows is not None
        assert np.isnan(rows[0]).all()
        assert np.isfinite(rows[1]).all()
    assert (tried, runner.recomputed) == ([1], 0)


def test_where_the_runner_has_looked_through_token_vectors_its_report_counts() -> None:
    vectors = [np.ones((2, 3), dtype=np.float32), np.full((1, 3), np.nan, dtype=np.float32)]
    assert find_not_finite(ModelOutput(multi_vectors=vectors), 2).tolist() == [False, True]
    reported = ModelOutput(multi_vectors=vectors, is_finite=np.array([False, True]))
    assert find_not_finite(reported, 2).tolist() == [True, False]


BOUNDS = {
    "few": ([2, 5], [10] * 6, [2, 5]),
    "too many": (range(MAX_INPUTS + 5), [1] * (MAX_INPUTS + 5), range(MAX_INPUTS)),
    "too long": ([0, 1], [MAX_TOKENS, 1], [0]),
    "one that is too long": ([0], [MAX_TOKENS + 1], []),
}


@pytest.mark.parametrize(("indices", "lengths", "want"), BOUNDS.values(), ids=BOUNDS)
def test_how_much_of_a_batch_is_run_again(indices: list[int], lengths: list[int], want: list[int]) -> None:
    bounded_to = limit_indices(np.array(indices, dtype=np.int32), np.array(lengths, dtype=np.int32))
    assert bounded_to.tolist() == [*want]
