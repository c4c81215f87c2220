"""The layout of xlm-roberta-flash-implementation, the code of jina-reranker-v2 and jina-embeddings-v3."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.census.layouts import WEIGHTS, edit_config, read_json, write_json

CODE = "jinaai/xlm-roberta-flash-implementation--"
# From transformers' names of an XLM-RoBERTa.
RENAMED = {
    r"embeddings\.LayerNorm": "emb_ln",
    r"encoder\.layer\.(\d+)\.attention\.output\.dense": r"encoder.layers.\1.mixer.out_proj",
    r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm": r"encoder.layers.\1.norm1",
    r"encoder\.layer\.(\d+)\.intermediate\.dense": r"encoder.layers.\1.mlp.fc1",
    r"encoder\.layer\.(\d+)\.output\.dense": r"encoder.layers.\1.mlp.fc2",
    r"encoder\.layer\.(\d+)\.output\.LayerNorm": r"encoder.layers.\1.norm2",
}
SEPARATE = r"encoder\.layer\.(\d+)\.attention\.self\.query"
# Of jina-embeddings-v3, in the order of its config.json.
INSTRUCTIONS = {
    "retrieval.query": "Represent the query for retrieving evidence documents: ",
    "retrieval.passage": "Represent the document for retrieval: ",
    "separation": "",
    "classification": "",
    "text-matching": "",
}
ADAPTERS = tuple(INSTRUCTIONS)
RANK, ALPHA = 4, 1
PREFIX, ORIGINAL, STACK = "roberta.", ".parametrizations.weight.original", ".parametrizations.weight.0"
ADAPTED = re.compile(r"(.*(_embeddings|Wqkv|out_proj|fc1|fc2|pooler\.dense))\.weight")


def publish_flash(folder: Path) -> None:
    """An XLM-RoBERTa with its table of positions, one product of queries, keys and values in each layer."""
    tensors = load_file(folder / WEIGHTS)
    save_file(dict(_rename(name, tensors) for name in tensors if not _is_joined(name)), folder / WEIGHTS)
    edit_config(
        folder,
        auto_map={
            "AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModel": "modeling_xlm_roberta.XLMRobertaModel",
            "AutoModelForSequenceClassification": "modeling_xlm_roberta.XLMRobertaForSequenceClassification",
        },
        emb_pooler=None,
        load_trained_adapters=False,
        lora_adaptations=None,
        lora_alpha=1,
        lora_rank=4,
        position_embedding_type="absolute",
        use_flash_attn=True,
    )


def _is_joined(name: str) -> bool:
    return re.search(r"attention\.self\.(key|value)\.", name) is not None


def _rename(name: str, tensors: Mapping[str, Tensor]) -> tuple[str, Tensor]:
    if re.search(SEPARATE, name):
        parts = [tensors[name.replace("query", part)] for part in ("query", "key", "value")]
        return re.sub(SEPARATE, r"encoder.layers.\1.mixer.Wqkv", name), torch.cat(parts)
    new = name
    for pattern, target in RENAMED.items():
        new = re.sub(pattern, target, new)
    return new, tensors[name]


def publish_adapters(folder: Path) -> None:
    """jina-embeddings-v3 as its authors publish it: one adapter a task, in stacks inside the checkpoint."""
    source = torch.Generator().manual_seed(7)
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        found = ADAPTED.fullmatch(name)
        if found is None:
            tensors[PREFIX + name] = tensor
            continue
        module = PREFIX + found[1]
        rows, columns = tensor.shape
        is_table = found[2] == "_embeddings"
        shapes = ((rows, RANK), (RANK, columns)) if is_table else ((RANK, columns), (rows, RANK))
        tensors[module + ORIGINAL] = tensor
        for factor, shape in zip(("lora_A", "lora_B"), shapes, strict=True):
            tensors[f"{module}{STACK}.{factor}"] = torch.randn(len(ADAPTERS), *shape, generator=source) * 0.3
    save_file(tensors, folder / WEIGHTS)
    theta = read_json(folder / "config.json")["rope_parameters"]["rope_theta"]
    edit_config(
        folder,
        model_type="xlm-roberta",
        architectures=["XLMRobertaModel"],
        auto_map={
            "AutoConfig": f"{CODE}configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModel": f"{CODE}modeling_lora.XLMRobertaLoRA",
        },
        load_trained_adapters=True,
        lora_adaptations=list(ADAPTERS),
        lora_alpha=ALPHA,
        lora_dropout_p=0.0,
        lora_main_params_trainable=False,
        lora_rank=RANK,
        position_embedding_type="rotary",
        rope_parameters=None,
        rotary_emb_base=theta,
        task_instructions=INSTRUCTIONS,
        use_flash_attn=True,
    )
    if (folder / "modules.json").exists():
        modules = read_json(folder / "modules.json")
        modules[0] |= {"type": "custom_st.Transformer", "kwargs": ["task"]}
        write_json(folder / "modules.json", modules)
        prompts = {"prompts": INSTRUCTIONS, "default_prompt_name": None}
        write_json(folder / "config_sentence_transformers.json", prompts)


def publish_colbert(folder: Path) -> None:
    """jina-colbert-v2: code for XLM-RoBERTa with rotary positions, under ColBERT's class."""
    theta = read_json(folder / "config.json")["rope_parameters"]["rope_theta"]
    edit_config(
        folder,
        model_type="xlm-roberta",
        auto_map={
            "AutoConfig": f"{CODE}configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModel": f"{CODE}modeling_xlm_roberta.XLMRobertaModel",
        },
        load_trained_adapters=False,
        lora_adaptations=None,
        position_embedding_type="rotary",
        rope_parameters=None,
        rotary_emb_base=theta,
        use_flash_attn=True,
    )


def merge_adapter(published: Path, twin: Path, target: Path, adapter: str) -> Path:
    """Write transformers' layout of the model with an adapter merged as `LoRAParametrization.lora_forward` computes it.

    twin: a folder in transformers' layout, whose other files are taken.
    """
    shutil.copytree(twin, target)
    stored, place = load_file(published / WEIGHTS), ADAPTERS.index(adapter)
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if STACK in name:
            continue
        module = name.removesuffix(ORIGINAL)
        if module == name:
            tensors[name.removeprefix(PREFIX)] = tensor
            continue
        a, b = (stored[f"{module}{STACK}.{factor}"][place] for factor in ("lora_A", "lora_B"))
        product = torch.matmul(*((a, b) if module.endswith("_embeddings") else (b, a)))
        merged = tensor + product.view(tensor.shape) * (ALPHA / RANK)
        tensors[f"{module.removeprefix(PREFIX)}.weight"] = merged
    save_file(tensors, target / WEIGHTS, {"format": "pt"})
    return target
