"""DistilBERT: BERT without token types, under names of its own.

Source: `DistilBertModel` of transformers. Sinusoidal positions (`sinusoidal_pos_embds`) only fill the table once,
before training; the checkpoint holds it either way.
"""

from __future__ import annotations

from types import MappingProxyType

from pydantic import PositiveInt

from embedserve_runtime.model.architecture import AbsolutePositions, Embeddings, Encoder
from embedserve_runtime.model.families.common import (
    describe_attention,
    describe_mlp,
    describe_post_norm_layer,
    layer_norm,
    map_linear,
    map_norm,
    map_tensor,
)
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames


class DistilBertConfig(FileModel):
    """The keys of config.json that decide the forward pass."""

    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    n_layers: PositiveInt
    n_heads: PositiveInt
    dim: PositiveInt
    hidden_dim: PositiveInt
    activation: str = "gelu"


NORM = layer_norm(1e-12)  # fixed in the source, not a setting

_LAYER = "transformer.layer.{layer}"
NAMES = ParameterNames(
    prefixes=("", "distilbert."),
    sources=MappingProxyType(
        {
            **map_tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
            **map_tensor("embeddings.position.weight", "embeddings.position_embeddings.weight"),
            **map_norm("embeddings.norm", "embeddings.LayerNorm"),
            **map_linear("layers.{layer}.attention.query", f"{_LAYER}.attention.q_lin"),
            **map_linear("layers.{layer}.attention.key", f"{_LAYER}.attention.k_lin"),
            **map_linear("layers.{layer}.attention.value", f"{_LAYER}.attention.v_lin"),
            **map_linear("layers.{layer}.attention.output", f"{_LAYER}.attention.out_lin"),
            **map_norm("layers.{layer}.attention.norm", f"{_LAYER}.sa_layer_norm"),
            **map_linear("layers.{layer}.mlp.up", f"{_LAYER}.ffn.lin1"),
            **map_linear("layers.{layer}.mlp.down", f"{_LAYER}.ffn.lin2"),
            **map_norm("layers.{layer}.mlp.norm", f"{_LAYER}.output_layer_norm"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(DistilBertConfig)
    layer = describe_post_norm_layer(
        describe_attention(path, config.dim, config.n_heads),
        describe_mlp(path, "activation", config.activation, config.hidden_dim),
        NORM,
    )
    return Encoder(
        family="distilbert",
        hidden_size=config.dim,
        max_positions=config.max_position_embeddings,
        embeddings=Embeddings(
            vocabulary=config.vocab_size,
            positions=AbsolutePositions(config.max_position_embeddings),
            token_types=0,
            norm=NORM,
        ),
        layers=(layer,) * config.n_layers,
        final_norm=None,
        parameter_names=NAMES,
    )
