"""Gemma 3 text models and EmbeddingGemma: norms before and after each branch, scaled word embeddings, norms on queries
and keys, local attention with a rotary base of its own in most layers.

Source: `Gemma3TextModel` of transformers. With `use_bidirectional_attention` a token sees sliding_window // 2 tokens
to each side; causal, sliding_window tokens with itself.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from embedserve_runtime.model.architecture import (
    Attention,
    Encoder,
    Layer,
    Mlp,
    Norm,
    NormPlacement,
    QkNorm,
    QkNormScope,
)
from embedserve_runtime.model.families import gemma
from embedserve_runtime.model.families.common import (
    FULL,
    SLIDING,
    check_layer_types,
    read_activation,
    refuse,
    unsupported_error,
)
from embedserve_runtime.model.files import ModelFile
from embedserve_runtime.model.rotary import LayerTypesConfig, describe_rotary


class GemmaConfig(LayerTypesConfig):
    """The keys of config.json that decide the forward pass."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    max_position_embeddings: PositiveInt
    head_dim: PositiveInt = 256
    hidden_activation: str = "gelu_pytorch_tanh"
    rms_norm_eps: NonNegativeFloat = 1e-6
    attention_bias: bool = False
    query_pre_attn_scalar: PositiveFloat = 256
    sliding_window: int | None = 4096
    sliding_window_pattern: PositiveInt = 6
    layer_types: list[str] | None = None
    attn_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | None = False
    is_causal: bool | None = None
    rope_theta: PositiveFloat = 1_000_000.0
    rope_local_base_freq: PositiveFloat = 10_000.0


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(GemmaConfig)
    refuse(path, [("attn_logit_softcapping", config.attn_logit_softcapping, None)])
    if config.is_causal is False and not config.use_bidirectional_attention:
        raise unsupported_error(path, "is_causal", False)  # the window's meaning would be another one again
    rms = gemma.describe_norm(config.rms_norm_eps)
    every = config.sliding_window_pattern
    layer_types = config.layer_types or [
        SLIDING if (number + 1) % every else FULL for number in range(config.num_hidden_layers)
    ]
    attention = {
        kind: _describe_attention(path, config, kind, rms)
        for kind in set(check_layer_types(path, layer_types, config.num_hidden_layers))
    }
    act = read_activation(path, "hidden_activation", config.hidden_activation)
    mlp = Mlp(config.intermediate_size, act, gated=True, up_bias=False, down_bias=False)
    return Encoder(
        family="gemma3_text",
        hidden_size=config.hidden_size,
        max_positions=config.max_position_embeddings,
        embeddings=gemma.describe_embeddings(config.vocab_size, config.hidden_size),
        layers=tuple(Layer(attention[kind], mlp, NormPlacement.SANDWICH, rms) for kind in layer_types),
        final_norm=rms,
        parameter_names=gemma.NAMES_AROUND,
    )


def _describe_attention(path: Path, config: GemmaConfig, kind: str, rms: Norm) -> Attention:
    if config.num_attention_heads % config.num_key_value_heads:
        raise unsupported_error(path, "num_key_value_heads", config.num_key_value_heads)
    theta = config.rope_theta if kind == FULL else config.rope_local_base_freq
    settings = config.find_parameters(kind, theta, scaled=kind == FULL)
    return Attention(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        scale=config.query_pre_attn_scalar**-0.5,
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        causal=not config.use_bidirectional_attention,
        window=_read_window(path, config) if kind == SLIDING else None,
        qk_norm=QkNorm(rms, QkNormScope.HEAD),
        rotary=describe_rotary(path, settings, config.head_dim, config.max_position_embeddings),
    )


def _read_window(path: Path, config: GemmaConfig) -> int:
    if config.sliding_window is None:
        raise unsupported_error(path, "sliding_window", None)
    return config.sliding_window // 2 if config.use_bidirectional_attention else config.sliding_window - 1
