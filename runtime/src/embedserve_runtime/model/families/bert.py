"""BERT: learned absolute positions, post-norm layers, erf GELU. Also RoBERTa, XLM-RoBERTa and CamemBERT, which
differ in the first position (pad_token_id + 1) and in the prefix of their tensors.

Source: `BertModel` and `RobertaModel` of transformers. Old checkpoints call the LayerNorm parameters gamma and beta;
checkpoints of a model with a head carry a prefix.
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
    unsupported_error,
)
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames


class BertConfig(FileModel):
    """The keys of config.json that decide the forward pass."""

    model_type: str
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: NonNegativeFloat = 1e-12
    position_embedding_type: str = "absolute"
    is_decoder: bool = False
    pad_token_id: int | None = None


_LAYER = "encoder.layer.{layer}"
NAMES = ParameterNames(
    prefixes=("", "bert.", "roberta.", "model."),
    sources=MappingProxyType(
        {
            **map_tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
            **map_tensor("embeddings.position.weight", "embeddings.position_embeddings.weight"),
            **map_tensor("embeddings.token_type.weight", "embeddings.token_type_embeddings.weight"),
            **map_norm("embeddings.norm", "embeddings.LayerNorm"),
            **map_linear("layers.{layer}.attention.query", f"{_LAYER}.attention.self.query"),
            **map_linear("layers.{layer}.attention.key", f"{_LAYER}.attention.self.key"),
            **map_linear("layers.{layer}.attention.value", f"{_LAYER}.attention.self.value"),
            **map_linear("layers.{layer}.attention.output", f"{_LAYER}.attention.output.dense"),
            **map_norm("layers.{layer}.attention.norm", f"{_LAYER}.attention.output.LayerNorm"),
            **map_linear("layers.{layer}.mlp.up", f"{_LAYER}.intermediate.dense"),
            **map_linear("layers.{layer}.mlp.down", f"{_LAYER}.output.dense"),
            **map_norm("layers.{layer}.mlp.norm", f"{_LAYER}.output.LayerNorm"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(BertConfig)
    if config.position_embedding_type != "absolute":
        raise unsupported_error(path, "position_embedding_type", config.position_embedding_type)
    if config.is_decoder:
        raise unsupported_error(path, "is_decoder", True)
    # RoBERTa counts positions from the one after padding (create_position_ids_from_input_ids); its default pad id is 1.
    offset = (
        0
        if config.model_type in ("bert", "electra")
        else 1 + (1 if config.pad_token_id is None else config.pad_token_id)
    )
    layer = describe_post_norm_layer(
        describe_attention(path, config.hidden_size, config.num_attention_heads),
        describe_mlp(path, "hidden_act", config.hidden_act, config.intermediate_size),
        layer_norm(config.layer_norm_eps),
    )
    return Encoder(
        family=config.model_type,
        hidden_size=config.hidden_size,
        max_positions=config.max_position_embeddings - offset,
        embeddings=Embeddings(
            vocabulary=config.vocab_size,
            positions=AbsolutePositions(config.max_position_embeddings, offset),
            token_types=config.type_vocab_size,
            norm=layer.norm,
        ),
        layers=(layer,) * config.num_hidden_layers,
        final_norm=None,
        parameter_names=NAMES,
    )
