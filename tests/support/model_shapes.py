"""The config.json of well-known models, for what depends on the shape of a model alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from embedserve_runtime.model import families
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.folder import read_folder

_BERT = {"model_type": "bert", "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
_ENGLISH = _BERT | {"vocab_size": 30_522, "max_position_embeddings": 512}
_QWEN3 = {
    "model_type": "qwen3",
    "head_dim": 128,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "max_position_embeddings": 40_960,
}

CONFIGS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "all-MiniLM-L6-v2": _ENGLISH
        | {
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1_536,
        },
        "bge-base-en-v1.5": _ENGLISH
        | {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3_072,
        },
        "bge-m3": _BERT
        | {
            "model_type": "xlm-roberta",
            "layer_norm_eps": 1e-5,
            "type_vocab_size": 1,
            "vocab_size": 250_002,
            "max_position_embeddings": 8_194,
            "pad_token_id": 1,
            "hidden_size": 1_024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4_096,
        },
        "Qwen3-Embedding-0.6B": _QWEN3
        | {
            "vocab_size": 151_669,
            "max_position_embeddings": 32_768,
            "hidden_size": 1_024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "intermediate_size": 3_072,
        },
        "Qwen3-Embedding-4B": _QWEN3
        | {
            "vocab_size": 151_665,
            "hidden_size": 2_560,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "intermediate_size": 9_728,
        },
        "Qwen3-Embedding-8B": _QWEN3
        | {
            "vocab_size": 151_665,
            "hidden_size": 4_096,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "intermediate_size": 12_288,
        },
        "ModernBERT-base": {
            "model_type": "modernbert",
            "vocab_size": 50_368,
            "hidden_size": 768,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "intermediate_size": 1_152,
            "max_position_embeddings": 8_192,
            "hidden_activation": "gelu",
            "norm_eps": 1e-5,
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
            "global_attn_every_n_layers": 3,
            "local_attention": 128,
            "global_rope_theta": 160_000.0,
            "local_rope_theta": 10_000.0,
            "pad_token_id": 50_283,
        },
        "all-mpnet-base-v2": {
            "model_type": "mpnet",
            "vocab_size": 30_527,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3_072,
            "max_position_embeddings": 514,
            "relative_attention_num_buckets": 32,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
        },
        "embeddinggemma-300m": {
            "model_type": "gemma3_text",
            "vocab_size": 262_144,
            "hidden_size": 768,
            "num_hidden_layers": 24,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "intermediate_size": 1_152,
            "max_position_embeddings": 2_048,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "sliding_window": 512,
            "use_bidirectional_attention": True,
            "_sliding_window_pattern": 6,
        },
        "nomic-embed-text-v1.5": {
            "model_type": "nomic_bert",
            "vocab_size": 30_528,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_inner": 3_072,
            "n_positions": 8_192,
            "activation_function": "swiglu",
            "layer_norm_epsilon": 1e-12,
            "qkv_proj_bias": False,
            "mlp_fc1_bias": False,
            "mlp_fc2_bias": False,
            "prenorm": False,
            "rotary_emb_fraction": 1.0,
            "rotary_emb_base": 1_000,
            "rotary_emb_interleaved": False,
            "rotary_scaling_factor": None,
            "type_vocab_size": 2,
            "use_rms_norm": False,
            "causal": False,
            "parallel_block": False,
        },
        "jina-embeddings-v2-base-en": _BERT
        | {
            "vocab_size": 30_528,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3_072,
            "max_position_embeddings": 8_192,
            "position_embedding_type": "alibi",
            "feed_forward_type": "geglu",
            "emb_pooler": "mean",
            "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
        },
        "mdeberta-v3-base": {
            "model_type": "deberta-v2",
            "vocab_size": 128_100,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3_072,
            "max_position_embeddings": 512,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-7,
            "relative_attention": True,
            "max_relative_positions": -1,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": "p2c|c2p",
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    }
)
"""By the name of the repository. The values are those of the repositories' own config.json, as far as they decide the
shape."""
_LAYER_KEYS = ("num_hidden_layers", "n_layer")


def write_config(
    name: str, folder: Path, *, layers: int | None = None, vocabulary: int | None = None
) -> None:
    """Write the config.json of a model, with another number of layers or of tokens where one is given."""
    config = dict(CONFIGS[name])
    if layers is not None:
        config |= {key: layers for key in _LAYER_KEYS if key in config}
    if vocabulary is not None:
        config["vocab_size"] = vocabulary
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def describe_shape(
    name: str, folder: Path, *, layers: int | None = None, vocabulary: int | None = None
) -> Encoder:
    """Return the encoder of a model whose config.json is written into `folder` first."""
    write_config(name, folder, layers=layers, vocabulary=vocabulary)
    return families.describe(read_folder(folder))
