"""Conversion of models with real weights, by the default floor."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.config.engine import ParitySettings
from embedserve_runtime.conversion.converting import convert
from embedserve_runtime.engines.onnx.artifacts import find_artifact
from embedserve_runtime.forward.cosines import compute_cosines
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.runners.base import Runner
from tests.runtime.pipelines.folders import embed
from tests.support.models import minilm_folder, splade_folder
from tests.support.texts import parity_texts
from tests.support.tolerances import EIGHT_BIT_HELD_OUT_MEAN_COSINE, EIGHT_BIT_MIN_COSINE

pytestmark = pytest.mark.thorough

MINILM_SPACE = "vs2-d4f43f9e189b33de563b"


def config_of(source: Path, store: Path, precision: str = "auto", task: str = "auto") -> RuntimeConfig:
    return load_config(
        flags={
            "model": {"source": str(source), "store": store, "task": task},
            "engine": {"precision": precision},
        }
    )


def test_8_bit_minilm_is_published_and_close_on_texts_that_it_was_not_tried_with(
    tmp_path: Path, minilm_runner: Runner
) -> None:
    result = convert(config_of(minilm_folder(), tmp_path))
    (int8,) = (variant for variant in result["variants"] if variant["precision"] == "int8")
    assert int8["published"], int8["reason"]
    assert result["vectorSpace"] == MINILM_SPACE
    runner = load_runner(config_of(minilm_folder(), tmp_path, "int8"))
    assert (runner.engine.precision, runner.card.vector_space) == ("int8", MINILM_SPACE)
    texts = parity_texts(300)
    cosines = compute_cosines(embed(minilm_runner, texts), embed(runner, texts))
    assert cosines.mean() >= EIGHT_BIT_HELD_OUT_MEAN_COSINE
    assert cosines.min() >= EIGHT_BIT_MIN_COSINE


def test_real_sparse_vectors_in_8_bit_are_published_if_they_measure_up_to_the_floor(tmp_path: Path) -> None:
    result = convert(config_of(splade_folder(), tmp_path, task="sparse"))
    assert result["outputs"] == ["sparse"]
    (int8,) = (variant for variant in result["variants"] if variant["precision"] == "int8")
    floor = ParitySettings()
    is_good_enough = (
        int8["rankAgreement"] >= floor.min_rank_agreement
        and int8["meanCosine"] >= floor.min_mean_cosine
        and int8["minCosine"] >= floor.min_cosine
    )
    artifact = find_artifact(tmp_path, result["artifact"])
    assert artifact is not None
    assert int8["rankAgreement"] < 1, "8 bit was compared with itself"
    assert int8["published"] == is_good_enough == (artifact.folder / "int8").is_dir()
