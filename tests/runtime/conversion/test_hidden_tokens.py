"""Converted models whose queries have tokens that attention does not see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder

from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.conversion.converting import convert
from embedserve_runtime.engines.onnx.artifacts import find_artifact
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.onnx_outputs import list_onnx_outputs
from tests.runtime.heads.head_runner import card_of, greatest
from tests.runtime.heads.test_late_interaction import DOCUMENTS, KINDS, QUERIES, saved, vectors_by
from tests.support.tolerances import FP32_MAX_ABS_DIFF

NO_FLOOR = {"min_mean_cosine": -1, "min_cosine": -1, "min_rank_agreement": -1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_folder = saved(tmp_path_factory.mktemp("colbert"), KINDS["hidden expansion"])
    assert card_of(model_folder).has_attention_mask
    return model_folder


def config_of(folder: Path, store: Path, precision: str = "auto", *outputs: str) -> RuntimeConfig:
    flags = {
        "model": {"source": str(folder), "store": store},
        "engine": {"threads": 1, "precision": precision},
        "onnx": {"precision": ["int8"], "outputs": outputs, "parity": NO_FLOOR},
    }
    return load_config(flags=flags)


def test_each_variant_gives_queries_and_documents_as_sentence_transformers_does(
    folder: Path, tmp_path: Path
) -> None:
    conversion = convert(config_of(folder, tmp_path))
    assert [variant["published"] for variant in conversion["variants"]] == [True, True]
    assert find_artifact(tmp_path, str(conversion["artifact"])) is not None
    model = MultiVectorEncoder(str(folder), device="cpu")
    want = [
        *model.encode_query(QUERIES, convert_to_numpy=True),
        *model.encode_document(DOCUMENTS, convert_to_numpy=True),
    ]
    for precision in ("float32", "int8"):
        runner = load_runner(config_of(folder, tmp_path, precision))
        assert runner.engine.precision == precision
        got = vectors_by(runner)
        assert [vectors.shape for vectors in got] == [vectors.shape for vectors in want]
        for ours, theirs in zip(got, want, strict=True):
            if precision == "float32":
                assert greatest(ours - theirs) <= FP32_MAX_ABS_DIFF
            # Vectors have length 1.
            assert np.einsum("ij,ij->i", ours, theirs).min() > 0.95


def test_a_file_for_other_programs_which_would_show_them_is_refused(folder: Path, tmp_path: Path) -> None:
    assert list_onnx_outputs(card_of(folder)) == ()
    message = r"onnx\.outputs: last_hidden_state cannot be written .* can give nothing"
    with pytest.raises(ConfigError, match=message):
        convert(config_of(folder, tmp_path, "auto", "last_hidden_state"))
