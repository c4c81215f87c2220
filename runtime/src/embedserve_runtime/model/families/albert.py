"""ALBERT: BERT whose layers share one set of weights, after narrow embeddings with a projection.

Source: `AlbertModel` of transformers. Every layer of ours reads the tensors of the one group that there is, so a loaded
model takes the memory of all its layers.
"""

from __future__ import annotations

from types import MappingProxyType

from pydantic import NonNegativeFloat, PositiveInt

from embedserve_runtime.model.architecture import AbsolutePositions, Embeddings, Encoder
from embedserve_runtime.model.families.common import (
    describe_attention,
    describe_mlp,
    describe_post_norm_layer,
    layer_norm,
    map_linear,
    map_norm,
    map_tensor,
    refuse,
    unsupported_error,
)
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames


class AlbertConfig(FileModel):
    """The keys of config.json that decide the forward pass."""

    vocab_size: PositiveInt
    embedding_size: PositiveInt = 128
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_hidden_groups: PositiveInt = 1
    inner_group_num: PositiveInt = 1
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    max_position_embeddings: PositiveInt
    type_vocab_size: int = 2
    hidden_act: str = "gelu_new"
    layer_norm_eps: NonNegativeFloat = 1e-12
    position_embedding_type: str = "absolute"


_SHARED = "encoder.albert_layer_groups.0.albert_layers.0"
NAMES = ParameterNames(
    prefixes=("", "albert."),
    sources=MappingProxyType(
        {
            **map_tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
            **map_tensor("embeddings.position.weight", "embeddings.position_embeddings.weight"),
            **map_tensor("embeddings.token_type.weight", "embeddings.token_type_embeddings.weight"),
            **map_norm("embeddings.norm", "embeddings.LayerNorm"),
            **map_linear("embeddings.projection", "encoder.embedding_hidden_mapping_in"),
            **map_linear("layers.{layer}.attention.query", f"{_SHARED}.attention.query"),
            **map_linear("layers.{layer}.attention.key", f"{_SHARED}.attention.key"),
            **map_linear("layers.{layer}.attention.value", f"{_SHARED}.attention.value"),
            **map_linear("layers.{layer}.attention.output", f"{_SHARED}.attention.dense"),
            **map_norm("layers.{layer}.attention.norm", f"{_SHARED}.attention.LayerNorm"),
            **map_linear("layers.{layer}.mlp.up", f"{_SHARED}.ffn"),
            **map_linear("layers.{layer}.mlp.down", f"{_SHARED}.ffn_output"),
            **map_norm("layers.{layer}.mlp.norm", f"{_SHARED}.full_layer_layer_norm"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(AlbertConfig)
    refuse(
        path,
        [
            ("num_hidden_groups", config.num_hidden_groups, 1),
            ("inner_group_num", config.inner_group_num, 1),
            ("position_embedding_type", config.position_embedding_type, "absolute"),
        ],
    )
    if config.embedding_size == config.hidden_size:
        raise unsupported_error(
            path, "embedding_size", config.embedding_size
        )  # it would be projected all the same
    layer = describe_post_norm_layer(
        describe_attention(path, config.hidden_size, config.num_attention_heads),
        describe_mlp(path, "hidden_act", config.hidden_act, config.intermediate_size),
        layer_norm(config.layer_norm_eps),
    )
    return Encoder(
        family="albert",
        hidden_size=config.hidden_size,
        max_positions=config.max_position_embeddings,
        embeddings=Embeddings(
            vocabulary=config.vocab_size,
            positions=AbsolutePositions(config.max_position_embeddings),
            token_types=config.type_vocab_size,
            norm=layer.norm,
            width=config.embedding_size,
            norm_first=True,
        ),
        layers=(layer,) * config.num_hidden_layers,
        final_norm=None,
        parameter_names=NAMES,
    )
