"""Checkpoints under other names than those of the bare model: transformers' own names, and the prefix of a head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import (
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GteConfig,
    GteForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    MPNetConfig,
    MPNetForMaskedLM,
    NomicBertConfig,
    NomicBertForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder
from tests.runtime.engines.cases import CASES
from tests.runtime.engines.engines import engine_of

# What transformers saves, to what its modules are called in memory: a pattern and its replacements, one a row block.
# Source: conversion_mapping.py of transformers.
GTE = {
    r"encoder\.layer\.(\d+)\.attention\.qkv_proj\.": ["q_proj", "k_proj", "v_proj"],
    r"encoder\.layer\.(\d+)\.mlp\.up_gate_proj\.": ["mlp.up_proj", "mlp.gate_proj"],
}
NOMIC = {r"encoder\.layers\.(\d+)\.attn\.Wqkv\.": ["q_proj", "k_proj", "v_proj"]}
GTE_NAMES = {
    "encoder.layer.": "layers.",
    "attention.o_proj": "self_attn.o_proj",
    "attn_ln": "post_attention_layernorm",
    "mlp_ln": "post_mlp_layernorm",
}
NOMIC_NAMES = {
    "encoder.layers.": "layers.",
    "emb_ln": "embeddings.LayerNorm",
    "attn.out_proj": "self_attn.o_proj",
    "fc11": "up_proj",
    "fc12": "gate_proj",
    "fc2": "down_proj",
    "norm1": "post_attention_layernorm",
    "norm2": "post_mlp_layernorm",
}


def in_memory_names(
    tensors: Mapping[str, FloatArray], fused: Mapping[str, list[str]], names: Mapping[str, str]
) -> dict[str, FloatArray]:
    renamed: dict[str, FloatArray] = {}
    for name, tensor in tensors.items():
        for pattern, parts in fused.items():
            if match := re.match(pattern, name):
                blocks = np.split(tensor, len(parts))
                for part, block in zip(parts, blocks, strict=True):
                    product = part if "." in part else f"self_attn.{part}"
                    renamed[f"layers.{match[1]}.{product}.{name.rsplit('.', 1)[1]}"] = block.copy()
                break
        else:
            for old, new in names.items():
                name = name.replace(old, new)  # noqa: PLW2901  # one name, rewritten step by step
            renamed[name] = tensor
    return renamed


@pytest.mark.parametrize("prefix", ["", "new."])
@pytest.mark.parametrize(
    ("case_name", "fused", "names"),
    [("gte, odd heads", GTE, GTE_NAMES), ("nomic, odd heads", NOMIC, NOMIC_NAMES)],
)
def test_the_names_of_transformers_modules_are_understood(
    tmp_path: Path, case_name: str, fused: Mapping[str, list[str]], names: Mapping[str, str], prefix: str
) -> None:
    case = next(case for case in CASES if case.name == case_name)
    case.build(tmp_path)
    want = engine_of(tmp_path, "onnx").forward(case.batch())
    file = tmp_path / "model.safetensors"
    saved = load_file(file)
    changed = in_memory_names(saved, fused, names)
    assert not set(changed) & {name for name in saved if "encoder" in name}
    prefix = prefix if case_name.startswith("gte") else prefix.replace("new.", "nomic_bert.")
    save_file({prefix + name: tensor for name, tensor in changed.items()}, file)
    np.testing.assert_array_equal(engine_of(tmp_path, "onnx").forward(case.batch()), want)


SMALL = {"vocab_size": 97, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3}
TABLE_SIZES = {"intermediate_size": 50, "max_position_embeddings": 42}
WITH_A_HEAD: dict[str, tuple[type[PreTrainedModel], PretrainedConfig]] = {
    "distilbert": (
        DistilBertForMaskedLM,
        DistilBertConfig(vocab_size=97, dim=36, n_layers=2, n_heads=3, hidden_dim=50),
    ),
    "mpnet": (MPNetForMaskedLM, MPNetConfig(**SMALL, **TABLE_SIZES)),
    "modernbert": (ModernBertForMaskedLM, ModernBertConfig(**SMALL, **TABLE_SIZES, pad_token_id=0)),
    "gte": (GteForMaskedLM, GteConfig(**SMALL, **TABLE_SIZES)),
    "nomic": (NomicBertForMaskedLM, NomicBertConfig(**SMALL, **TABLE_SIZES)),
    "deberta": (
        DebertaV2ForMaskedLM,
        DebertaV2Config(**SMALL, **TABLE_SIZES, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SMALL, **TABLE_SIZES, num_key_value_heads=1)),
    "mistral": (MistralForCausalLM, MistralConfig(**SMALL, **TABLE_SIZES, num_key_value_heads=1)),
    "llama": (LlamaForCausalLM, LlamaConfig(**SMALL, **TABLE_SIZES)),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(**SMALL, **TABLE_SIZES, num_key_value_heads=1)),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**SMALL, **TABLE_SIZES, num_key_value_heads=1)),
}


@pytest.mark.parametrize(("model", "config"), WITH_A_HEAD.values(), ids=WITH_A_HEAD.keys())
def test_every_parameter_is_found_in_the_checkpoint_of_a_model_with_a_head(
    tmp_path: Path, model: type[PreTrainedModel], config: PretrainedConfig
) -> None:
    model(config).save_pretrained(tmp_path)
    encoder = families.describe(read_folder(tmp_path))
    checkpoint = Checkpoint.open(tmp_path)
    assert not any(name.startswith(("embed_tokens", "embeddings.word")) for name in checkpoint.names)
    weights = Weights(encoder, checkpoint)
    for parameter in encoder.parameters():
        assert weights.read_tensor(parameter.name).shape == parameter.shape
