"""DeBERTa-v2 and v3: disentangled attention, with or without absolute positions besides; v2 xlarge has a convolution
parallel to its first layer.

Source: `DebertaV2Model` of transformers. Its scores are divided by sqrt(head size * (1 + number of position terms)).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from pydantic import NonNegativeFloat, PositiveInt

from embedserve_runtime.model.architecture import (
    AbsolutePositions,
    Attention,
    Convolution,
    Disentangled,
    Embeddings,
    Encoder,
    Layer,
    Norm,
)
from embedserve_runtime.model.families.common import (
    compute_head_size,
    describe_attention_of_size,
    describe_mlp,
    describe_post_norm_layer,
    layer_norm,
    map_linear,
    map_norm,
    map_tensor,
    read_activation,
    refuse,
    unsupported_error,
)
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames


class DebertaConfig(FileModel):
    """The keys of config.json that decide the forward pass."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    max_position_embeddings: PositiveInt = 512
    type_vocab_size: int = 0
    hidden_act: str = "gelu"
    layer_norm_eps: NonNegativeFloat = 1e-7
    relative_attention: bool = False
    max_relative_positions: int = -1
    position_buckets: int = -1
    position_biased_input: bool = True
    pos_att_type: str | list[str] | None = None
    share_att_key: bool = False
    norm_rel_ebd: str = "none"
    embedding_size: PositiveInt | None = None
    attention_head_size: PositiveInt | None = None
    conv_kernel_size: int = 0
    conv_groups: PositiveInt = 1
    conv_act: str = "tanh"


_LAYER = "encoder.layer.{layer}"
NAMES = ParameterNames(
    prefixes=("", "deberta."),
    sources=MappingProxyType(
        {
            **map_tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
            **map_tensor("embeddings.position.weight", "embeddings.position_embeddings.weight"),
            **map_tensor("embeddings.token_type.weight", "embeddings.token_type_embeddings.weight"),
            **map_tensor("embeddings.projection.weight", "embeddings.embed_proj.weight"),
            **map_norm("embeddings.norm", "embeddings.LayerNorm"),
            **map_tensor("relative_embeddings.weight", "encoder.rel_embeddings.weight"),
            **map_norm("relative_embeddings.norm", "encoder.LayerNorm"),
            **map_linear("layers.{layer}.attention.query", f"{_LAYER}.attention.self.query_proj"),
            **map_linear("layers.{layer}.attention.key", f"{_LAYER}.attention.self.key_proj"),
            **map_linear("layers.{layer}.attention.value", f"{_LAYER}.attention.self.value_proj"),
            **map_linear("layers.{layer}.attention.position_key", f"{_LAYER}.attention.self.pos_key_proj"),
            **map_linear(
                "layers.{layer}.attention.position_query", f"{_LAYER}.attention.self.pos_query_proj"
            ),
            **map_linear("layers.{layer}.attention.output", f"{_LAYER}.attention.output.dense"),
            **map_norm("layers.{layer}.attention.norm", f"{_LAYER}.attention.output.LayerNorm"),
            **map_linear("layers.{layer}.mlp.up", f"{_LAYER}.intermediate.dense"),
            **map_linear("layers.{layer}.mlp.down", f"{_LAYER}.output.dense"),
            **map_norm("layers.{layer}.mlp.norm", f"{_LAYER}.output.LayerNorm"),
            **map_linear("layers.{layer}.convolution", "encoder.conv.conv"),
            **map_norm("layers.{layer}.convolution.norm", "encoder.conv.LayerNorm"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(DebertaConfig)
    size = compute_head_size(path, config.hidden_size, config.num_attention_heads)
    refuse(path, [("attention_head_size", config.attention_head_size or size, size)])
    the_norm = layer_norm(config.layer_norm_eps)
    layer = describe_post_norm_layer(
        _describe_attention(
            path, config, describe_attention_of_size(size, config.num_attention_heads), the_norm
        ),
        describe_mlp(path, "hidden_act", config.hidden_act, config.intermediate_size),
        the_norm,
    )
    rows, width = config.max_position_embeddings, config.embedding_size or config.hidden_size
    return Encoder(
        family="deberta-v2",
        hidden_size=config.hidden_size,
        max_positions=rows,
        embeddings=Embeddings(
            vocabulary=config.vocab_size,
            positions=AbsolutePositions(rows) if config.position_biased_input else None,
            token_types=config.type_vocab_size,
            norm=the_norm,
            width=None if width == config.hidden_size else width,
        ),
        layers=tuple(_describe_layers(path, config, layer)),
        final_norm=None,
        parameter_names=NAMES,
    )


def _describe_layers(path: Path, config: DebertaConfig, layer: Layer) -> list[Layer]:
    kernel = config.conv_kernel_size
    if kernel <= 0:
        return [layer] * config.num_hidden_layers
    if kernel % 2 == 0:  # the source's result would be shorter than the text
        raise unsupported_error(path, "conv_kernel_size", kernel)
    refuse(path, [("conv_groups", config.conv_groups, 1)])
    first = replace(
        layer, convolution=Convolution(kernel, read_activation(path, "conv_act", config.conv_act))
    )
    return [first, *[layer] * (config.num_hidden_layers - 1)]


def _describe_attention(path: Path, config: DebertaConfig, plain: Attention, the_norm: Norm) -> Attention:
    terms = _read_terms(path, config)
    return replace(
        plain,
        scale=(plain.head_size * (1 + len(terms))) ** -0.5,
        disentangled=_describe_disentangled(path, config, terms, the_norm),
    )


def _read_terms(path: Path, config: DebertaConfig) -> frozenset[str]:
    setting = config.pos_att_type
    names = setting.lower().split("|") if isinstance(setting, str) else setting or []
    terms = frozenset(name.strip() for name in names if name.strip())
    if not terms <= {"c2p", "p2c"}:
        raise unsupported_error(path, "pos_att_type", setting)
    return terms


def _describe_disentangled(
    path: Path, config: DebertaConfig, terms: frozenset[str], the_norm: Norm
) -> Disentangled | None:
    if not config.relative_attention or not terms:
        return None
    norms = {name.strip() for name in config.norm_rel_ebd.lower().split("|")}
    if not norms <= {"none", "layer_norm"}:
        raise unsupported_error(path, "norm_rel_ebd", config.norm_rel_ebd)
    longest = (
        config.max_relative_positions if config.max_relative_positions > 0 else config.max_position_embeddings
    )
    buckets = max(config.position_buckets, 0)
    return Disentangled(
        span=buckets or longest,
        buckets=buckets,
        max_distance=longest,
        content_to_position="c2p" in terms,
        position_to_content="p2c" in terms,
        shared_projections=config.share_att_key,
        norm=the_norm if "layer_norm" in norms else None,
    )
