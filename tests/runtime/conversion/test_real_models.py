"""Conversion of models with real weights, by the default floor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.conversion.converting import convert
from embedserve_runtime.engines.cosines import cosines
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.runners.base import Runner
from tests.runtime.pipelines.folders import embed
from tests.support.models import minilm_folder, splade_folder
from tests.support.texts import parity_texts

pytestmark = pytest.mark.thorough

MINILM_SPACE = "vs1-0978181612db7ef023ab"


def config_of(source: Path, store: Path, precision: str = "auto") -> RuntimeConfig:
    return load_config(
        flags={"model": {"source": str(source), "store": store}, "engine": {"precision": precision}}
    )


def test_8_bit_minilm_is_published_and_close_on_texts_that_it_was_not_tried_with(
    tmp_path: Path, minilm_runner: Runner
) -> None:
    result = convert(config_of(minilm_folder(), tmp_path))
    (int8,) = (one for one in result["variants"] if one["precision"] == "int8")
    assert int8["published"], int8["reason"]
    assert result["vectorSpace"] == MINILM_SPACE
    runner = load_runner(config_of(minilm_folder(), tmp_path, "int8"))
    assert (runner.engine.precision, runner.card.vector_space) == ("int8", MINILM_SPACE)
    texts = parity_texts(300)
    found = cosines(embed(minilm_runner, texts), embed(runner, texts))
    assert (found.mean() >= 0.998, found.min() >= 0.99) == (True, True)


def test_real_sparse_vectors_are_tried_as_such(tmp_path: Path) -> None:
    result = convert(config_of(splade_folder(), tmp_path))
    variants = {one["precision"]: one for one in result["variants"]}
    assert np.isfinite(variants["int8"]["rankAgreement"])
    assert variants["int8"]["published"] == (not variants["int8"]["reason"])
