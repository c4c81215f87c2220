"""ModernBERT: norms first, gated MLP, rotary positions, local attention in all but every n-th layer.

Source: `ModernBertModel` of transformers. Local layers have a rotary base of their own; layer 0 has no norm before its
attention, since the embeddings end with one; `local_attention` is the whole width of the window.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from embedserve_runtime.model.architecture import (
    Attention,
    Embeddings,
    Encoder,
    Layer,
    Mlp,
    Norm,
    NormKind,
    NormPlacement,
)
from embedserve_runtime.model.families.common import (
    FULL,
    SLIDING,
    check_layer_types,
    compute_head_size,
    map_linear,
    map_norm,
    map_tensor,
    read_activation,
)
from embedserve_runtime.model.files import ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames
from embedserve_runtime.model.rotary import LayerTypesConfig, describe_rotary


class ModernBertConfig(LayerTypesConfig):
    """The keys of config.json that decide the forward pass."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    max_position_embeddings: PositiveInt
    hidden_activation: str = "gelu"
    norm_eps: NonNegativeFloat = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    local_attention: PositiveInt = 128
    global_attn_every_n_layers: PositiveInt = 3
    layer_types: list[str] | None = None
    global_rope_theta: PositiveFloat = 160_000.0
    local_rope_theta: PositiveFloat | None = 10_000.0


_LAYER = "layers.{layer}"
NAMES = ParameterNames(
    prefixes=("", "model."),
    sources=MappingProxyType(
        {
            **map_tensor("embeddings.word.weight", "embeddings.tok_embeddings.weight"),
            **map_norm("embeddings.norm", "embeddings.norm"),
            **map_norm("layers.{layer}.attention.norm", f"{_LAYER}.attn_norm"),
            **map_linear("layers.{layer}.attention.query", f"{_LAYER}.attn.Wqkv", part=0, parts=3),
            **map_linear("layers.{layer}.attention.key", f"{_LAYER}.attn.Wqkv", part=1, parts=3),
            **map_linear("layers.{layer}.attention.value", f"{_LAYER}.attn.Wqkv", part=2, parts=3),
            **map_linear("layers.{layer}.attention.output", f"{_LAYER}.attn.Wo"),
            **map_norm("layers.{layer}.mlp.norm", f"{_LAYER}.mlp_norm"),
            # The first half of Wi is activated, the second multiplied.
            **map_linear("layers.{layer}.mlp.gate", f"{_LAYER}.mlp.Wi", part=0, parts=2),
            **map_linear("layers.{layer}.mlp.up", f"{_LAYER}.mlp.Wi", part=1, parts=2),
            **map_linear("layers.{layer}.mlp.down", f"{_LAYER}.mlp.Wo"),
            **map_norm("final_norm", "final_norm"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(ModernBertConfig)
    layer_norm = Norm(NormKind.LAYER, config.norm_eps, bias=config.norm_bias)
    attention = {kind: _describe_attention(path, config, kind) for kind in (FULL, SLIDING)}
    mlp = Mlp(
        intermediate=config.intermediate_size,
        activation=read_activation(path, "hidden_activation", config.hidden_activation),
        gated=True,
        up_bias=config.mlp_bias,
        down_bias=config.mlp_bias,
    )
    every = config.global_attn_every_n_layers
    layer_types = config.layer_types or [
        SLIDING if number % every else FULL for number in range(config.num_hidden_layers)
    ]
    return Encoder(
        family="modernbert",
        hidden_size=config.hidden_size,
        max_positions=config.max_position_embeddings,
        embeddings=Embeddings(config.vocab_size, positions=None, token_types=0, norm=layer_norm),
        layers=tuple(
            Layer(attention[kind], mlp, NormPlacement.PRE, layer_norm, attention_norm=number > 0)
            for number, kind in enumerate(check_layer_types(path, layer_types, config.num_hidden_layers))
        ),
        final_norm=layer_norm,
        parameter_names=NAMES,
    )


def _describe_attention(path: Path, config: ModernBertConfig, kind: str) -> Attention:
    size = compute_head_size(path, config.hidden_size, config.num_attention_heads)
    local_theta = config.local_rope_theta or config.global_rope_theta
    theta = config.global_rope_theta if kind == FULL else local_theta
    settings = config.find_parameters(kind, theta, scaled=True)
    return Attention(
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads,
        head_size=size,
        scale=size**-0.5,
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        window=None if kind == FULL else config.local_attention // 2,
        rotary=describe_rotary(path, settings, size, config.max_position_embeddings),
    )
