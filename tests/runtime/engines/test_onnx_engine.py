"""The ONNX engine against transformers, on tiny random models with odd shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import BertModel

from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.engines.onnx import engine as engine_module
from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.engines.onnx.graph import build
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from tests.support.models import tiny_bert
from tests.support.tolerances import TINY_MODEL_MAX_ABS_DIFF

LENGTHS = (1, 70, 13, 2, 40, 13, 69)

SHAPES: dict[str, dict[str, object]] = {
    "odd heads": {},
    "one layer, one head": {"num_hidden_layers": 1, "num_attention_heads": 1},
    "tanh gelu": {"hidden_act": "gelu_new"},
    "relu": {"hidden_act": "relu"},
    "silu": {"hidden_act": "silu"},
    "large epsilon": {"layer_norm_eps": 0.1},
    "one token type": {"type_vocab_size": 1},
}


def engine_of(folder: Path) -> OnnxEngine:
    encoder = families.describe(folder)
    return OnnxEngine(encoder, Weights(encoder, Checkpoint.open(folder)), threads=2)


def random_batch() -> PackedBatch:
    source = np.random.default_rng(0)
    return PackedBatch.pack([source.integers(0, 97, length).astype(np.int32) for length in LENGTHS])


def hidden_of_transformers(model: BertModel, batch: PackedBatch) -> FloatArray:
    """Each sequence on its own, so that the reference knows no padding."""
    parts = np.split(batch.token_ids.astype(np.int64), batch.cu_seqlens[1:-1])
    with torch.no_grad():
        states = [model(torch.from_numpy(part)[None]).last_hidden_state[0].numpy() for part in parts]
    return np.concatenate(states)


@pytest.mark.parametrize("settings", SHAPES.values(), ids=SHAPES.keys())
def test_hidden_states_equal_those_of_transformers(tmp_path: Path, settings: dict[str, object]) -> None:
    model = tiny_bert(tmp_path, **settings)
    batch = random_batch()
    hidden = engine_of(tmp_path).forward(batch)
    assert hidden.shape == (batch.tokens, 36)
    assert np.abs(hidden - hidden_of_transformers(model, batch)).max() <= TINY_MODEL_MAX_ABS_DIFF


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_old_norm_names_and_the_prefix_of_a_model_with_a_head_are_understood(
    tmp_path: Path, prefix: str
) -> None:
    tiny_bert(tmp_path)
    batch = random_batch()
    want_hidden = engine_of(tmp_path).forward(batch)
    file = tmp_path / "model.safetensors"
    renamed = {
        prefix
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(renamed, file)
    np.testing.assert_array_equal(engine_of(tmp_path).forward(batch), want_hidden)


def test_the_session_keeps_no_pointer_into_the_arrays_that_it_was_built_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bert(tmp_path)
    handed_over: list[FloatArray] = []

    def build_and_remember(*arguments: object) -> object:
        model, initializers = build(*arguments)  # type: ignore[arg-type]
        writable = {name: value.copy() for name, value in initializers.items()}
        handed_over.extend(writable.values())
        return model, writable

    monkeypatch.setattr(engine_module, "build", build_and_remember)
    engine, batch = engine_of(tmp_path), random_batch()
    before = engine.forward(batch)
    for array in handed_over:
        array.fill(np.nan)
    np.testing.assert_array_equal(engine.forward(batch), before)


def test_a_failure_of_the_library_is_an_engine_failure(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    outside_the_vocabulary = PackedBatch.pack([np.array([1, 97], dtype=np.int32)])
    with pytest.raises(EngineFailure, match="batch of 2 tokens"):
        engine_of(tmp_path).forward(outside_the_vocabulary)
