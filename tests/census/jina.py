"""The layout of xlm-roberta-flash-implementation, the code of jina-reranker-v2 and jina-embeddings-v3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.census.layouts import WEIGHTS, edit_config

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
