"""Every tensor of a checkpoint is read, is known to take no part, or stops the start by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    EmbeddingGemma2Config,
    EmbeddingGemma2Model,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.card import ModelCard
from tests.runtime.heads.head_runner import card_of
from tests.runtime.pipelines.folders import write_modules
from tests.support.models import tiny

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 30,
    "max_position_embeddings": 64,
}
BERT = BertConfig(**SHAPE)


def with_tensor(folder: Path, name: str, *shape: int) -> None:
    file = folder / "model.safetensors"
    save_file({**load_file(file), name: np.ones(shape, np.float32)}, file)


def pooled(folder: Path) -> None:
    """Say by a Pooling module that the folder is for dense vectors."""
    write_modules(folder, word_embedding_dimension=24, pooling_mode_mean_tokens=True)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    tiny(tmp_path, BertModel, BERT)
    return tmp_path


UNKNOWN = {
    "a projection at the root (voyage-4-nano, HF_ColBERT)": ("linear.weight", (48, 24)),
    "a layer that config.json does not count": ("encoder.layer.2.output.dense.bias", (24,)),
    "a bias that the family does not have": ("encoder.layer.0.attention.self.scale", (3,)),
    "token weights": ("classifier.weight", (1, 24)),
    "a single number": ("logit_scale", ()),
}


@pytest.mark.parametrize(("name", "shape"), UNKNOWN.values(), ids=UNKNOWN)
def test_a_tensor_that_nobody_reads_stops_the_start(bert: Path, name: str, shape: tuple[int, ...]) -> None:
    with_tensor(bert, name, *shape)
    with pytest.raises(UnsupportedArchitecture) as refused:
        card_of(bert)
    assert (
        f"nothing that config.json describes reads the tensor {name} {list(shape)}" in refused.value.message
    )
    assert str(bert) in refused.value.message


def test_only_some_of_many_are_named(bert: Path) -> None:
    for number in range(7):
        with_tensor(bert, f"extra.{number}", 2)
    with pytest.raises(UnsupportedArchitecture, match=r"extra\.4 \[2\] and 2 more, so"):
        card_of(bert)


def test_a_tensor_beside_those_of_a_dense_module_stops_the_start(bert: Path) -> None:
    pooled(bert)
    module = bert / "2_Dense"
    module.mkdir()
    sizes = {"in_features": 24, "out_features": 24, "bias": False}
    (module / "config.json").write_text(json.dumps(sizes))
    lines = json.loads((bert / "modules.json").read_text())
    lines.append({"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (bert / "modules.json").write_text(json.dumps(lines))
    weight = np.eye(24, dtype=np.float32)
    save_file({"linear.weight": weight}, module / "model.safetensors")
    assert card_of(bert).pipeline.dense
    save_file({"linear.weight": weight, "linear.bias": np.ones(24, np.float32)}, module / "model.safetensors")
    with pytest.raises(UnsupportedArchitecture, match=r"2_Dense: .* reads the tensor linear\.bias \[24\]"):
        card_of(bert)


DECODER = Qwen2Config(**SHAPE, num_key_value_heads=3, tie_word_embeddings=False)
MODERN = ModernBertConfig(
    **{key: value for key, value in SHAPE.items() if key != "vocab_size"}, vocab_size=97, pad_token_id=0
)
DISTIL = DistilBertConfig(
    vocab_size=97, dim=24, n_layers=2, n_heads=3, hidden_dim=30, max_position_embeddings=64
)
STRAYS: dict[str, tuple[type[PreTrainedModel], PretrainedConfig]] = {
    "BERT's masked-LM head": (BertForMaskedLM, BERT),
    "DistilBERT's masked-LM head": (DistilBertForMaskedLM, DISTIL),
    "ModernBERT's masked-LM head": (ModernBertForMaskedLM, MODERN),
    "a decoder's output layer": (Qwen2ForCausalLM, DECODER),
    "labels of texts": (BertForSequenceClassification, BertConfig(**SHAPE, num_labels=3)),
    "labels of tokens": (BertForTokenClassification, BertConfig(**SHAPE, num_labels=3)),
    "answers in a text": (BertForQuestionAnswering, BERT),
}


@pytest.mark.parametrize(("model", "config"), STRAYS.values(), ids=STRAYS)
def test_the_head_of_another_task_takes_no_part_in_dense_vectors(
    tmp_path: Path, model: type[PreTrainedModel], config: PretrainedConfig
) -> None:
    saved = tiny(tmp_path, model, config)
    pooled(tmp_path)
    with_head = card_of(tmp_path).vector_space
    saved.base_model.save_pretrained(tmp_path)
    assert card_of(tmp_path).vector_space == with_head


def buffers(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(
        {
            **tensors,
            "embeddings.position_ids": np.arange(64)[None],
            "encoder.layer.0.attention.self.rotary_emb.inv_freq": np.ones(4, np.float32),
        },
        file,
    )


def pooler(folder: Path) -> None:
    with_tensor(folder, "pooler.dense.weight", 24, 24)
    with_tensor(folder, "pooler.dense.bias", 24)


@pytest.mark.parametrize("add", [buffers, pooler])
def test_buffers_and_a_pooler_take_no_part(bert: Path, add: Callable[[Path], None]) -> None:
    before = card_of(bert).vector_space
    add(bert)
    assert card_of(bert).vector_space == before


def test_a_pickle_is_held_to_the_same(bert: Path) -> None:
    tensors = {
        name: torch.from_numpy(tensor) for name, tensor in load_file(bert / "model.safetensors").items()
    }
    (bert / "model.safetensors").unlink()
    torch.save(tensors, bert / "pytorch_model.bin")
    card: ModelCard = card_of(bert)
    assert card.encoder.family == "bert"
    torch.save({**tensors, "linear.weight": torch.ones(2, 24)}, bert / "pytorch_model.bin")
    with pytest.raises(UnsupportedArchitecture, match=r"the tensor linear\.weight \[2, 24\]"):
        card_of(bert)


def test_what_reads_images_and_sound_beside_text_is_neither_read_nor_part_of_the_vector_space(
    tmp_path: Path,
) -> None:
    text = {**SHAPE, "num_attention_heads": 4, "head_dim": 6, "global_head_dim": 8, "embedding_dim": 20}
    model = tiny(tmp_path, EmbeddingGemma2Model, EmbeddingGemma2Config(text_config=text))
    assert model.config.vision_config is None
    write_modules(tmp_path, word_embedding_dimension=20, pooling_mode_mean_tokens=True)
    card = card_of(tmp_path)
    assert card.pipeline.dimensions == 20
    with_tensor(tmp_path, "vision_tower.encoder.weight", 4, 6)
    with_tensor(tmp_path, "embed_audio.embedding_projection.weight", 24, 6)
    assert card_of(tmp_path).vector_space == card.vector_space
    with_tensor(tmp_path, "language_model.another.weight", 4, 6)
    with pytest.raises(UnsupportedArchitecture, match=r"language_model\.another\.weight"):
        card_of(tmp_path)
