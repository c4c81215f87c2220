"""jina-embeddings-v3 as transformers has it: XLM-RoBERTa with rotary positions in place of the table.

Source: `JinaEmbeddingsV3Model` of transformers. The adapters for tasks lie in folders of their own and are not read:
without one the model gives the vectors of its plain weights.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from pydantic import NonNegativeFloat, PositiveInt

from embedserve_runtime.model.architecture import Embeddings, Encoder, ParameterNames
from embedserve_runtime.model.families.common import (
    describe_attention,
    describe_mlp,
    describe_post_norm_layer,
    layer_norm,
    map_linear,
    map_norm,
    map_query_key_value,
    map_tensor,
)
from embedserve_runtime.model.files import ModelFile
from embedserve_runtime.model.rotary import RotaryConfig

DEFAULT_THETA = 20_000.0


class JinaV3Config(RotaryConfig):
    """The keys of config.json that decide the forward pass."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    type_vocab_size: int = 1
    hidden_act: str = "gelu"
    layer_norm_eps: NonNegativeFloat = 1e-5


# Of the repository, and of the class: transformers renames while it loads and saves.
_OLD, _NEW = "encoder.layers.{layer}", "layers.{layer}"
NAMES = ParameterNames(
    prefixes=("", "roberta."),
    sources=MappingProxyType(
        {
            **map_tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
            **map_tensor("embeddings.token_type.weight", "embeddings.token_type_embeddings.weight"),
            **map_norm("embeddings.norm", "emb_ln", "embeddings.LayerNorm"),
            **map_query_key_value(f"{_OLD}.mixer.Wqkv", f"{_NEW}.self_attn"),
            **map_linear(
                "layers.{layer}.attention.output", f"{_OLD}.mixer.out_proj", f"{_NEW}.self_attn.o_proj"
            ),
            **map_norm("layers.{layer}.attention.norm", f"{_OLD}.norm1", f"{_NEW}.post_attention_layernorm"),
            **map_linear("layers.{layer}.mlp.up", f"{_OLD}.mlp.fc1", f"{_NEW}.mlp.fc1"),
            **map_linear("layers.{layer}.mlp.down", f"{_OLD}.mlp.fc2", f"{_NEW}.mlp.fc2"),
            **map_norm("layers.{layer}.mlp.norm", f"{_OLD}.norm2", f"{_NEW}.post_mlp_layernorm"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """The encoder that `file`, a config.json, describes. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(JinaV3Config)
    attention = describe_attention(path, config.hidden_size, config.num_attention_heads)
    rotary = config.describe_rotary(path, attention.head_size, DEFAULT_THETA)
    layer = describe_post_norm_layer(
        replace(attention, rotary=rotary),
        describe_mlp(path, "hidden_act", config.hidden_act, config.intermediate_size),
        layer_norm(config.layer_norm_eps),
    )
    return Encoder(
        family="jina_embeddings_v3",
        hidden_size=config.hidden_size,
        max_tokens=config.max_position_embeddings,
        embeddings=Embeddings(config.vocab_size, None, config.type_vocab_size, layer.norm),
        layers=(layer,) * config.num_hidden_layers,
        final_norm=None,
        parameter_names=NAMES,
    )
