"""Gemma and Gemma 2: the common decoder with scaled word embeddings, and norms whose stored weights are 1 less. Gemma 2
also has norms behind its branches, a cap on the scores of its attention, and a window in every second layer.

Source: `GemmaModel` and `Gemma2Model` of transformers. There `is_causal` opens the mask to both sides;
`use_bidirectional_attention` alone opens it for some implementations of attention and not for others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.architecture import (
    Attention,
    Embeddings,
    Encoder,
    Norm,
    NormKind,
    NormPlacement,
)
from embedserve_runtime.model.families import decoder
from embedserve_runtime.model.families.common import (
    FULL,
    SLIDING,
    check_layer_types,
    map_norm,
    refuse,
    unsupported_error,
)
from embedserve_runtime.model.files import ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames

TANH_GELU = "gelu_pytorch_tanh"


class GemmaConfig(decoder.DecoderConfig):
    """The keys of config.json that decide the forward pass."""

    num_key_value_heads: PositiveInt
    head_dim: PositiveInt = 256
    hidden_act: str = TANH_GELU
    hidden_activation: str | None = None
    attention_bias: bool = False


class Gemma2Config(GemmaConfig):
    """The keys of config.json that decide the forward pass of Gemma 2, with its defaults."""

    query_pre_attn_scalar: PositiveFloat = 256
    sliding_window: int | None = 4096
    attn_logit_softcapping: PositiveFloat | None = 50.0


_LAYER = "layers.{layer}"
# Of the families whose branches have a norm before and one behind them.
NAMES_AROUND = ParameterNames(
    prefixes=decoder.NAMES.prefixes,
    sources=MappingProxyType(
        {
            **decoder.NAMES.sources,
            **map_norm("layers.{layer}.attention.post_norm", f"{_LAYER}.post_attention_layernorm"),
            **map_norm("layers.{layer}.mlp.norm", f"{_LAYER}.pre_feedforward_layernorm"),
            **map_norm("layers.{layer}.mlp.post_norm", f"{_LAYER}.post_feedforward_layernorm"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of a Gemma by its config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(GemmaConfig)
    refuse(path, [("layer_types", config.layer_types, None)])
    if config.hidden_activation is not None:
        # transformers 4 read this key, 5 does not.
        refuse(path, [("hidden_activation", config.hidden_activation, TANH_GELU)])
    if config.hidden_act == "gelu":
        # The first files said so and meant the approximation, which every version of transformers takes.
        config = config.model_copy(update={"hidden_act": TANH_GELU})
    attentions = [_describe_attention(path, config)] * config.num_hidden_layers
    return _describe_encoder(path, config, attentions, NormPlacement.PRE)


def describe_gemma2(file: ModelFile) -> Encoder:
    """Describe the encoder of a Gemma 2. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(Gemma2Config)
    config = config.model_copy(update={"hidden_act": config.hidden_activation or TANH_GELU})
    attention = replace(
        _describe_attention(path, config),
        scale=config.query_pre_attn_scalar**-0.5,
        soft_cap=config.attn_logit_softcapping,
    )
    attentions = [replace(attention, window=window) for window in _list_windows(path, config)]
    encoder = _describe_encoder(path, config, attentions, NormPlacement.SANDWICH)
    return replace(encoder, parameter_names=NAMES_AROUND)


def _describe_attention(path: Path, config: GemmaConfig) -> Attention:
    if config.use_bidirectional_attention and config.is_causal is not False:
        raise UnsupportedArchitecture(
            f"{path}: use_bidirectional_attention = True without is_causal = false is not supported, since versions of "
            "transformers take it for different masks; add is_causal"
        )
    bias = config.attention_bias
    return decoder.describe_attention(path, config, qkv_bias=bias, output_bias=bias)


def _list_windows(path: Path, config: Gemma2Config) -> list[int | None]:
    """List each layer's window, None for a layer without one: every second layer, from the first on, has one."""
    kinds = config.layer_types or [
        FULL if number % 2 else SLIDING for number in range(config.num_hidden_layers)
    ]
    check_layer_types(path, kinds, config.num_hidden_layers)
    if SLIDING not in kinds:
        return [None] * len(kinds)
    if config.sliding_window is None:
        raise unsupported_error(path, "sliding_window", None)
    window = config.find_window(path, config.sliding_window)
    return [window if kind == SLIDING else None for kind in kinds]


def _describe_encoder(
    path: Path, config: GemmaConfig, attentions: list[Attention], placement: NormPlacement
) -> Encoder:
    norm = describe_norm(config.rms_norm_eps)
    encoder = decoder.describe_encoder(path, config, attentions)
    return replace(
        encoder,
        embeddings=describe_embeddings(config.vocab_size, config.hidden_size),
        layers=tuple(replace(layer, placement=placement, norm=norm) for layer in encoder.layers),
        final_norm=norm,
    )


def describe_norm(eps: float) -> Norm:
    """Describe a norm as all Gemmas have it."""
    return Norm(NormKind.RMS, eps, unit_offset=True)


def describe_embeddings(vocabulary: int, hidden_size: int) -> Embeddings:
    """Describe word embeddings that are scaled by the root of the hidden size, which in the source is a float32 tensor,
    not the double that a square root is."""
    return Embeddings(vocabulary, None, 0, None, scale=float(np.float32(hidden_size**0.5)))
