"""Tests on a CUDA device of token weights: dense and sparse vectors of one forward near those of a CPU, of
batches that graphs keep hidden states of, and of larger ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from embedserve_runtime.config import load_config
from embedserve_runtime.engines.torch.graphs import MAX_TOKENS_WITH_HIDDEN
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.cosines import compute_cosines
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.heads.sparse import write_out
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.runners.protocol import AsyncBatchRunner
from tests.census.gte_multilingual import build_gte_multilingual
from tests.support.tolerances import FP32_MAX_ABS_DIFF, SIXTEEN_BIT_MIN_COSINE

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

BOTH = OutputKind.DENSE | OutputKind.SPARSE
# Texts of a batch: of one token, of few, of more than graphs keep hidden states of, and of more than any graph has room
# for.
LENGTHS = ([1], [3, 1, 40, 7], [100] * 120, [300, 5] * 120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_gte_multilingual(tmp_path_factory.mktemp("gte"), "new").folder


def open_runner(folder: Path, **engine: object) -> Runner:
    return load_runner(load_config(flags={"model": {"source": str(folder)}, "engine": engine}))


def batches(vocabulary: int) -> list[PackedBatch]:
    source = np.random.default_rng(2)
    return [
        PackedBatch.pack([source.integers(4, vocabulary, length).astype(np.int32) for length in lengths])
        for lengths in LENGTHS
    ]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_both_are_near_those_of_the_cpu_also_while_another_batch_is_under_way(
    folder: Path, precision: str
) -> None:
    exact, runner = open_runner(folder), open_runner(folder, kind="torch", precision=precision)
    assert isinstance(runner, AsyncBatchRunner)
    all_batches = batches(exact.card.sparse_width)
    assert all_batches[-2].tokens > MAX_TOKENS_WITH_HIDDEN
    ids = np.arange(exact.card.sparse_width, dtype=np.int32)
    want = [written(exact.run(batch, BOTH), ids) for batch in all_batches]
    for first, second in zip(range(len(all_batches)), [*range(1, len(all_batches)), 0], strict=True):
        under_way = [runner.submit(all_batches[number], BOTH) for number in (first, second)]
        for run, number in zip(under_way, (first, second), strict=True):
            dense, weights = written(run.results(), ids)
            want_dense, want_weights = want[number]
            assert compute_cosines(dense, want_dense).min() >= SIXTEEN_BIT_MIN_COSINE
            assert np.abs(weights - want_weights).max() <= 0.1 * want_weights.max()
            if precision == "float32":
                assert np.abs(dense - want_dense).max() <= FP32_MAX_ABS_DIFF
                assert np.abs(weights - want_weights).max() <= FP32_MAX_ABS_DIFF


def written(outputs: ModelOutput, ids: Int32Array) -> tuple[FloatArray, FloatArray]:
    """Dense vectors, and sparse ones with a column for each id."""
    assert outputs.dense is not None
    assert outputs.sparse is not None
    return outputs.dense, write_out(outputs.sparse, ids)
