"""DeBERTa-v2 and v3: disentangled attention, with or without absolute positions besides; v2 xlarge has a convolution
beside its first layer.

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
    ParameterNames,
)
from embedserve_runtime.model.families.common import (
    activation,
    encoder_without_final_norm,
    head_size,
    heads_of,
    layer_norm,
    linear,
    norm,
    plain_mlp,
    post_norm,
    refuse,
    tensor,
    unsupported,
)
from embedserve_runtime.model.files import FileModel, ModelFile


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
            **tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
            **tensor("embeddings.position.weight", "embeddings.position_embeddings.weight"),
            **tensor("embeddings.token_type.weight", "embeddings.token_type_embeddings.weight"),
            **tensor("embeddings.projection.weight", "embeddings.embed_proj.weight"),
            **norm("embeddings.norm", "embeddings.LayerNorm"),
            **tensor("relative_embeddings.weight", "encoder.rel_embeddings.weight"),
            **norm("relative_embeddings.norm", "encoder.LayerNorm"),
            **linear("layers.{layer}.attention.query", f"{_LAYER}.attention.self.query_proj"),
            **linear("layers.{layer}.attention.key", f"{_LAYER}.attention.self.key_proj"),
            **linear("layers.{layer}.attention.value", f"{_LAYER}.attention.self.value_proj"),
            **linear("layers.{layer}.attention.position_key", f"{_LAYER}.attention.self.pos_key_proj"),
            **linear("layers.{layer}.attention.position_query", f"{_LAYER}.attention.self.pos_query_proj"),
            **linear("layers.{layer}.attention.output", f"{_LAYER}.attention.output.dense"),
            **norm("layers.{layer}.attention.norm", f"{_LAYER}.attention.output.LayerNorm"),
            **linear("layers.{layer}.mlp.up", f"{_LAYER}.intermediate.dense"),
            **linear("layers.{layer}.mlp.down", f"{_LAYER}.output.dense"),
            **norm("layers.{layer}.mlp.norm", f"{_LAYER}.output.LayerNorm"),
            **linear("layers.{layer}.convolution", "encoder.conv.conv"),
            **norm("layers.{layer}.convolution.norm", "encoder.conv.LayerNorm"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """The encoder that `file`, a config.json, describes. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(DebertaConfig)
    size = head_size(path, config.hidden_size, config.num_attention_heads)
    refuse(path, [("attention_head_size", config.attention_head_size or size, size)])
    the_norm = layer_norm(config.layer_norm_eps)
    layer = post_norm(
        _attention(path, config, heads_of(size, config.num_attention_heads), the_norm),
        plain_mlp(path, "hidden_act", config.hidden_act, config.intermediate_size),
        the_norm,
    )
    rows, width = config.max_position_embeddings, config.embedding_size or config.hidden_size
    return encoder_without_final_norm(
        "deberta-v2",
        NAMES,
        hidden_size=config.hidden_size,
        max_tokens=rows,
        embeddings=Embeddings(
            vocabulary=config.vocab_size,
            positions=AbsolutePositions(rows) if config.position_biased_input else None,
            token_types=config.type_vocab_size,
            norm=the_norm,
            width=None if width == config.hidden_size else width,
        ),
        layers=_layers(path, config, layer),
    )


def _layers(path: Path, config: DebertaConfig, layer: Layer) -> list[Layer]:
    kernel = config.conv_kernel_size
    if kernel <= 0:
        return [layer] * config.num_hidden_layers
    if kernel % 2 == 0:  # the source's result would be shorter than the text
        raise unsupported(path, "conv_kernel_size", kernel)
    refuse(path, [("conv_groups", config.conv_groups, 1)])
    first = replace(layer, convolution=Convolution(kernel, activation(path, "conv_act", config.conv_act)))
    return [first, *[layer] * (config.num_hidden_layers - 1)]


def _attention(path: Path, config: DebertaConfig, plain: Attention, the_norm: Norm) -> Attention:
    terms = _terms(path, config)
    return replace(
        plain,
        scale=(plain.head_size * (1 + len(terms))) ** -0.5,
        disentangled=_disentangled(path, config, terms, the_norm),
    )


def _terms(path: Path, config: DebertaConfig) -> frozenset[str]:
    given = config.pos_att_type
    names = given.lower().split("|") if isinstance(given, str) else given or []
    terms = frozenset(name.strip() for name in names if name.strip())
    if not terms <= {"c2p", "p2c"}:
        raise unsupported(path, "pos_att_type", given)
    return terms


def _disentangled(
    path: Path, config: DebertaConfig, terms: frozenset[str], the_norm: Norm
) -> Disentangled | None:
    if not config.relative_attention or not terms:
        return None
    norms = {name.strip() for name in config.norm_rel_ebd.lower().split("|")}
    if not norms <= {"none", "layer_norm"}:
        raise unsupported(path, "norm_rel_ebd", config.norm_rel_ebd)
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
