"""Standard ONNX files of an artifact: what transformers gives, read by any program and served again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    BertModel,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.conversion.converting import convert
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.pipeline import Pooling
from tests.runtime.heads.head_runner import logits_of
from tests.runtime.pipelines.folders import TEXTS, bert, embed, tokens_of
from tests.support.models import copy_of_minilm, tiny
from tests.support.tolerances import FP32_MAX_ABS_DIFF

IDS = np.array([[101, 7, 8, 9, 102], [101, 7, 102, 0, 0], [5, 0, 0, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])


def config_of(source: Path, store: Path, *outputs: str, **model: Any) -> RuntimeConfig:
    floor = {"min_mean_cosine": -1, "min_cosine": -1, "min_rank_agreement": -1}
    onnx = {"precision": ["float32"], "outputs": outputs, "parity": floor}
    flags = {
        "model": {"source": str(source), "store": store, **model},
        "engine": {"threads": 1},
        "onnx": onnx,
    }
    return load_config(flags=flags)


def file_of(config: RuntimeConfig, precision: str = "float32") -> Path:
    artifact = str(convert(config)["artifact"])
    return config.model.store / "artifacts" / artifact / precision / "standard.onnx"


def run(file: Path, *outputs: str, ids: Any = IDS, mask: Any = MASK) -> list[FloatArray]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    names = {value.name for value in session.get_inputs()}
    outputs_of_run: list[FloatArray] = session.run(
        list(outputs), {k: v for k, v in feeds.items() if k in names}
    )
    return outputs_of_run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("model"), BertModel)


@pytest.mark.parametrize("side", ["right", "left"])
def test_hidden_states_are_those_of_transformers_and_0_at_padding(
    model: Path, tmp_path: Path, side: str
) -> None:
    ids, mask = (IDS, MASK) if side == "right" else (IDS[:, ::-1].copy(), MASK[:, ::-1].copy())
    (hidden,) = run(
        file_of(config_of(model, tmp_path, "last_hidden_state")), "last_hidden_state", ids=ids, mask=mask
    )
    plain = AutoModel.from_pretrained(model).eval()
    for row, shown, real in zip(hidden, ids, mask.astype(bool), strict=True):
        with torch.no_grad():
            want = plain(torch.tensor(shown[real][None])).last_hidden_state[0].numpy()
        assert np.abs(row[real] - want).max() <= FP32_MAX_ABS_DIFF
        assert not row[~real].any()


@pytest.mark.parametrize("pooling", [*Pooling])
def test_embeddings_are_pooled_as_the_service_does(model: Path, tmp_path: Path, pooling: Pooling) -> None:
    config = config_of(
        model, tmp_path, "sentence_embedding", "last_hidden_state", pooling=pooling, dimensions=7
    )
    served = again(model, file_of(config), tmp_path / "served", dimensions=7)
    want = embed(load_runner(config), TEXTS)
    assert want.shape[1] == 7
    assert np.abs(embed(served, TEXTS) - want).max() <= FP32_MAX_ABS_DIFF


def again(source: Path, file: Path, target: Path, **model: Any) -> Any:
    """The model's folder with the file in it, served by it."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    (target / "onnx").mkdir()
    for name in ("standard.onnx", "weights"):
        shutil.copy(file.with_name(name), target / "onnx")
    flags = {"model": {"source": str(target), "onnx_file": "onnx/standard.onnx", **model}}
    return load_runner(load_config(flags=flags | {"engine": {"threads": 1}}))


def test_logits_are_those_of_transformers_beside_hidden_states(tmp_path: Path) -> None:
    folder = bert(tmp_path / "model", BertForSequenceClassification, num_labels=3)
    file = file_of(config_of(folder, tmp_path, "logits", "last_hidden_state"))
    logits, hidden = run(file, "logits", "last_hidden_state")
    with torch.no_grad():
        want = AutoModelForSequenceClassification.from_pretrained(folder).eval()(
            torch.tensor(IDS), attention_mask=torch.tensor(MASK)
        )
    assert np.abs(logits - want.logits.numpy()).max() <= FP32_MAX_ABS_DIFF
    assert hidden.shape == (3, 5, 24)


def test_a_causal_classifier_reads_the_last_token_that_is_not_padding(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    config = Qwen3Config(
        vocab_size=3_000,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=30,
        max_position_embeddings=64,
        pad_token_id=0,
        num_labels=2,
    )
    tiny(folder, Qwen3ForSequenceClassification, config)
    shutil.copy(model / "tokenizer.json", folder)
    (logits,) = run(file_of(config_of(folder, tmp_path, "logits")), "logits")
    with torch.no_grad():
        plain = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        want = plain(torch.tensor(IDS), attention_mask=torch.tensor(MASK)).logits.numpy()
    assert np.abs(logits - want).max() <= FP32_MAX_ABS_DIFF


def test_a_file_of_a_classifier_is_served_with_the_scores_of_the_model(tmp_path: Path) -> None:
    folder = bert(tmp_path / "model", BertForSequenceClassification, num_labels=3)
    config = config_of(folder, tmp_path, "logits")
    served = again(folder, file_of(config), tmp_path / "served")
    scores, want = (
        logits_of(runner, tokens_of(runner.card, TEXTS)) for runner in (served, load_runner(config))
    )
    assert np.abs(scores - want).max() <= FP32_MAX_ABS_DIFF


def test_what_the_model_does_not_give_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    message = r"onnx\.outputs: logits cannot be written for .*last_hidden_state, sentence_embedding"
    with pytest.raises(ConfigError, match=message):
        convert(config_of(model, tmp_path, "logits"))


@pytest.mark.thorough
def test_minilm_in_8_bit_is_served_from_its_file_as_from_the_artifact(tmp_path: Path) -> None:
    folder = copy_of_minilm(tmp_path / "model")
    flags: dict[str, Any] = {
        "model": {"source": str(folder), "store": tmp_path / "store"},
        "onnx": {"outputs": ["sentence_embedding"]},
        "engine": {"precision": "int8"},
    }
    config = load_config(flags=flags)
    served = again(folder, file_of(config, "int8"), tmp_path / "served")
    packed = load_runner(config)
    assert packed.engine.precision == "int8"
    assert np.abs(embed(served, TEXTS) - embed(packed, TEXTS)).max() <= FP32_MAX_ABS_DIFF
