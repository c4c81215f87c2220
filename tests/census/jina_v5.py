"""jina-embeddings-v5-text in small: a EuroBERT or a Qwen3 under a class of its own, a folder with an adapter a task."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.census.encoders import ENCODERS, save_encoder
from tests.census.layouts import WEIGHTS, edit_config, write_json

# The encoder of each of its kinds.
BACKBONES: Mapping[str, str] = {"jina-v5-eurobert": "eurobert", "jina-v5-qwen3": "qwen3"}
TASKS = ("retrieval", "text-matching", "clustering", "classification")
PROMPTS = {"query": "Query: ", "document": "Document: "}
TARGETS = ["gate_proj", "v_proj", "q_proj", "down_proj", "o_proj", "k_proj", "up_proj"]
RANK, ALPHA = 4, 6
PREFIX, ADAPTER = "base_model.model.", "adapter_model.safetensors"


def save_jina_v5(kind: str, folder: Path) -> tuple[Path, Path]:
    """Write the encoder without adapters as transformers has it, and the model as the repository has it."""
    twin, published = folder / "of_the_loader", folder / "published"
    save_encoder(ENCODERS[BACKBONES[kind]], twin)
    shutil.copytree(twin, published)
    name = "jina_embeddings_v5.JinaEmbeddingsV5"
    edit_config(
        published,
        model_type="jina_embeddings_v5",
        architectures=["JinaEmbeddingsV5Model"],
        auto_map={"AutoConfig": f"configuration_{name}Config", "AutoModel": f"modeling_{name}Model"},
        task_names=list(TASKS),
        is_decoder=False if kind == "jina-v5-eurobert" else None,
    )
    kwargs = ["task", "truncate_dim"]
    module = {"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer", "kwargs": kwargs}
    write_json(published / "modules.json", [module])
    write_json(
        published / "config_sentence_transformers.json",
        {"prompts": PROMPTS, "default_prompt_name": "document", "similarity_fn_name": "cosine"},
    )
    weights = load_file(published / WEIGHTS)
    for number, task in enumerate(TASKS):
        _write_adapter(published / "adapters" / task, weights, number)
    return twin, published


def _write_adapter(folder: Path, weights: Mapping[str, Tensor], seed: int) -> None:
    """An adapter as peft 0.17 saves it."""
    config = {
        "base_model_name_or_path": "jinaai/jina-embeddings-v5-text",
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": "gaussian",
        "loftq_config": {},
        "lora_alpha": ALPHA,
        "lora_bias": False,
        "lora_dropout": 0.1,
        "megatron_core": "megatron.core",
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": RANK,
        "target_modules": TARGETS,
        "task_type": "FEATURE_EXTRACTION",
        "use_dora": False,
        "use_rslora": False,
    }
    source, tensors = torch.Generator().manual_seed(seed), dict[str, Tensor]()
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if module.endswith(tuple(TARGETS)):
            rows, columns = weight.shape
            tensors[f"{PREFIX}{module}.lora_A.weight"] = torch.randn(RANK, columns, generator=source) * 0.3
            tensors[f"{PREFIX}{module}.lora_B.weight"] = torch.randn(rows, RANK, generator=source) * 0.3
    write_json(folder / "adapter_config.json", config)
    save_file(tensors, folder / ADAPTER)


def merge_jina_v5(published: Path, twin: Path, target: Path, task: str) -> Path:
    """Write the encoder with an adapter merged by peft's formula. twin: of `save_jina_v5`."""
    shutil.copytree(twin, target)
    weights, factors = load_file(twin / WEIGHTS), load_file(published / "adapters" / task / ADAPTER)
    for name in weights:
        a, b = (
            factors.get(f"{PREFIX}{name.removesuffix('.weight')}.lora_{factor}.weight") for factor in "AB"
        )
        if a is not None and b is not None:
            weights[name] = weights[name] + ALPHA / RANK * (b @ a)
    save_file(weights, target / WEIGHTS, {"format": "pt"})
    return target
