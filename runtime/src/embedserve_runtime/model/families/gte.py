"""GTE v1.5 and multilingual: post-norm layers, rotary positions, gated MLP.

Sources: `GteModel` of transformers (model_type "gte") and the public repository Alibaba-NLP/new-impl (model_type
"new"). The names of the latter's tensors are also what transformers writes ("gte" in its conversion_mapping.py):
`up_gate_proj` holds the multiplied half first, the activated one second.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from pydantic import NonNegativeFloat, PositiveInt

from embedserve_runtime.model.architecture import Embeddings, Encoder, Mlp
from embedserve_runtime.model.families.common import (
    compute_head_size,
    describe_attention_of_size,
    describe_post_norm_layer,
    layer_norm,
    map_linear,
    map_norm,
    map_query_key_value,
    map_tensor,
    merge_sources,
    read_activation,
    refuse,
)
from embedserve_runtime.model.files import ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames
from embedserve_runtime.model.rotary import RotaryConfig

DEFAULT_THETA = {"gte": 160_000.0, "new": 10_000.0}


class GteConfig(RotaryConfig):
    """The keys of config.json that decide the forward pass."""

    model_type: str
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    hidden_act: str = "gelu"
    layer_norm_eps: NonNegativeFloat = 1e-12
    type_vocab_size: int = 0
    head_dim: PositiveInt | None = None
    # Of model_type "new" only.
    layer_norm_type: str = "layer_norm"
    position_embedding_type: str = "rope"
    logn_attention_scale: bool = False
    logn_attention_clip1: bool = False


_OLD, _NEW = "encoder.layer.{layer}", "layers.{layer}"
NAMES = ParameterNames(
    prefixes=("", "new.", "gte."),
    sources=MappingProxyType(
        {
            **map_tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
            **map_tensor("embeddings.token_type.weight", "embeddings.token_type_embeddings.weight"),
            **map_norm("embeddings.norm", "embeddings.LayerNorm"),
            # Products of their own: `pack_qkv` false in "new", or the names that transformers has in memory.
            **map_query_key_value(f"{_OLD}.attention.qkv_proj", f"{_OLD}.attention", f"{_NEW}.self_attn"),
            **merge_sources(
                map_linear("layers.{layer}.mlp.up", f"{_OLD}.mlp.up_gate_proj", part=0, parts=2),
                map_linear("layers.{layer}.mlp.up", f"{_NEW}.mlp.up_proj"),
                map_linear("layers.{layer}.mlp.gate", f"{_OLD}.mlp.up_gate_proj", part=1, parts=2),
                map_linear("layers.{layer}.mlp.gate", f"{_NEW}.mlp.gate_proj"),
            ),
            **map_linear(
                "layers.{layer}.attention.output", f"{_OLD}.attention.o_proj", f"{_NEW}.self_attn.o_proj"
            ),
            **map_norm(
                "layers.{layer}.attention.norm", f"{_OLD}.attn_ln", f"{_NEW}.post_attention_layernorm"
            ),
            **map_linear("layers.{layer}.mlp.down", f"{_OLD}.mlp.down_proj", f"{_NEW}.mlp.down_proj"),
            **map_norm("layers.{layer}.mlp.norm", f"{_OLD}.mlp_ln", f"{_NEW}.post_mlp_layernorm"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(GteConfig)
    if config.model_type == "new":  # transformers' own "gte" has none of these settings
        refuse(
            path,
            (
                ("layer_norm_type", config.layer_norm_type, "layer_norm"),
                ("position_embedding_type", config.position_embedding_type, "rope"),
                ("logn_attention_scale", config.logn_attention_scale, False),
                ("logn_attention_clip1", config.logn_attention_clip1, False),
            ),
        )
    size = config.head_dim or compute_head_size(path, config.hidden_size, config.num_attention_heads)
    theta = DEFAULT_THETA[config.model_type]
    layer = describe_post_norm_layer(
        replace(
            describe_attention_of_size(size, config.num_attention_heads),
            rotary=config.describe_rotary(path, size, theta),
        ),
        Mlp(
            config.intermediate_size,
            read_activation(path, "hidden_act", config.hidden_act),
            gated=True,
            up_bias=False,
            down_bias=True,
        ),
        layer_norm(config.layer_norm_eps),
    )
    return Encoder(
        family="gte",
        hidden_size=config.hidden_size,
        max_positions=config.max_position_embeddings,
        embeddings=Embeddings(config.vocab_size, None, config.type_vocab_size, layer.norm),
        layers=(layer,) * config.num_hidden_layers,
        final_norm=None,
        parameter_names=NAMES,
    )
