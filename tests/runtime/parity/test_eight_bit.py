"""The distance of vectors in 8 bit from those in 16 is measured on texts that a model really gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from embedserve_runtime.config import load_config
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind, SparseVector
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.parity.eight_bit import build_sample, measure_parity
from embedserve_runtime.runners.base import Runner
from tests.census.gte_multilingual import build_gte_multilingual
from tests.support.distorted_runners import DistortedRunner


@dataclass(frozen=True, kw_only=True)
class Worse(DistortedRunner):
    """A runner whose vectors are as far off as `error` says."""

    error: float

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        rows = self.exact.run(batch, outputs).dense
        assert rows is not None
        noise = np.random.default_rng(0).standard_normal(rows.shape, dtype=np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True) / rows.shape[1] ** 0.5
        return ModelOutput(dense=rows + self.error * lengths * noise)


def test_the_sample_has_texts_of_a_word_and_of_the_greatest_length(minilm_runner: Runner) -> None:
    card = minilm_runner.card
    lengths = build_sample(card).lengths
    assert lengths.min() <= 4
    assert lengths.max() == card.max_length


@pytest.mark.parametrize("error", [0.0, 0.01, 0.1])
def test_the_parity_is_the_cosine_that_the_error_leaves(minilm_runner: Runner, error: float) -> None:
    source = np.random.default_rng(0)
    batch = PackedBatch.pack(
        [source.integers(1000, 30_000, length).astype(np.int32) for length in (3, 9, 20)]
    )
    measured = measure_parity(Worse(exact=minilm_runner, error=error), minilm_runner, batch)
    assert measured.min_cosine == pytest.approx((1 + error**2) ** -0.5, abs=0.002)
    assert measured.min_cosine <= measured.mean_cosine <= 1
    assert (measured.precision, measured.reference) == (minilm_runner.engine.precision,) * 2


@dataclass(frozen=True, kw_only=True)
class WorseWeights(Worse):
    """A runner whose token weights are off and whose dense vectors are not: each text's first weight is so much
    larger."""

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        outputs_of_run = self.exact.run(batch, outputs)
        assert outputs_of_run.sparse is not None
        first = [np.arange(len(vector.values)) == 0 for vector in outputs_of_run.sparse]
        spoiled = [
            SparseVector(vector.indices, vector.values + np.float32(self.error) * is_first)
            for vector, is_first in zip(outputs_of_run.sparse, first, strict=True)
        ]
        return ModelOutput(dense=outputs_of_run.dense, sparse=spoiled)


def test_token_weights_count_where_they_are_further_off(tmp_path: Path) -> None:
    runner = load_runner(
        load_config(flags={"model": {"source": str(build_gte_multilingual(tmp_path, "new").folder)}})
    )
    batch = build_sample(runner.card)
    assert measure_parity(WorseWeights(exact=runner, error=0), runner, batch).min_cosine == pytest.approx(1)
    assert measure_parity(WorseWeights(exact=runner, error=1), runner, batch).min_cosine < 0.9
