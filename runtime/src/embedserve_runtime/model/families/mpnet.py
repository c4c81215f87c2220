"""MPNet: BERT with a learned bias by relative distance, one table for all layers, besides absolute positions.

Source: `MPNetModel` of transformers: positions start at 2 (its padding index is fixed at 1), 128 is the fixed
distance at which buckets end.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from pydantic import NonNegativeFloat, PositiveInt

from embedserve_runtime.model.architecture import AbsolutePositions, Embeddings, Encoder, RelativeBuckets
from embedserve_runtime.model.families.common import (
    describe_attention,
    describe_mlp,
    describe_post_norm_layer,
    layer_norm,
    map_linear,
    map_norm,
    map_tensor,
    refuse,
)
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames

FIRST_POSITION = 2
BUCKETS, MAX_DISTANCE = 32, 128


class MpnetConfig(FileModel):
    """The keys of config.json that decide the forward pass."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    max_position_embeddings: PositiveInt
    hidden_act: str = "gelu"
    layer_norm_eps: NonNegativeFloat = 1e-12
    relative_attention_num_buckets: int = BUCKETS


_LAYER = "encoder.layer.{layer}"
NAMES = ParameterNames(
    prefixes=("", "mpnet."),
    sources=MappingProxyType(
        {
            **map_tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
            **map_tensor("embeddings.position.weight", "embeddings.position_embeddings.weight"),
            **map_norm("embeddings.norm", "embeddings.LayerNorm"),
            **map_tensor("relative_bias.weight", "encoder.relative_attention_bias.weight"),
            **map_linear("layers.{layer}.attention.query", f"{_LAYER}.attention.attn.q"),
            **map_linear("layers.{layer}.attention.key", f"{_LAYER}.attention.attn.k"),
            **map_linear("layers.{layer}.attention.value", f"{_LAYER}.attention.attn.v"),
            **map_linear("layers.{layer}.attention.output", f"{_LAYER}.attention.attn.o"),
            **map_norm("layers.{layer}.attention.norm", f"{_LAYER}.attention.LayerNorm"),
            **map_linear("layers.{layer}.mlp.up", f"{_LAYER}.intermediate.dense"),
            **map_linear("layers.{layer}.mlp.down", f"{_LAYER}.output.dense"),
            **map_norm("layers.{layer}.mlp.norm", f"{_LAYER}.output.LayerNorm"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(MpnetConfig)
    # The source counts 32 buckets whatever the table's size.
    refuse(path, [("relative_attention_num_buckets", config.relative_attention_num_buckets, BUCKETS)])
    attention = describe_attention(path, config.hidden_size, config.num_attention_heads)
    layer = describe_post_norm_layer(
        replace(attention, distance_bias=RelativeBuckets(BUCKETS, MAX_DISTANCE)),
        describe_mlp(path, "hidden_act", config.hidden_act, config.intermediate_size),
        layer_norm(config.layer_norm_eps),
    )
    return Encoder(
        family="mpnet",
        hidden_size=config.hidden_size,
        max_positions=config.max_position_embeddings - FIRST_POSITION,
        embeddings=Embeddings(
            vocabulary=config.vocab_size,
            positions=AbsolutePositions(config.max_position_embeddings, FIRST_POSITION),
            token_types=0,
            norm=layer.norm,
        ),
        layers=(layer,) * config.num_hidden_layers,
        final_norm=None,
        parameter_names=NAMES,
    )
