"""Describes what the families that come from language models share: RMS norms first, rotary positions, grouped
key/value heads, gated MLP; causal unless config.json says otherwise.

Source: `Qwen2Model`, `Qwen3Model`, `MistralModel` and `LlamaModel` of transformers, which have one layout and one set
of tensor names.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from pydantic import NonNegativeFloat, PositiveInt

from embedserve_runtime.errors import UnsupportedArchitecture
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
    compute_head_size,
    map_linear,
    map_norm,
    map_tensor,
    read_activation,
    unsupported_error,
)
from embedserve_runtime.model.parameter_names import ParameterNames
from embedserve_runtime.model.rotary import RotaryConfig

DEFAULT_THETA = 10_000.0

_LAYER = "layers.{layer}"
NAMES = ParameterNames(
    prefixes=("", "model."),
    sources=MappingProxyType(
        {
            **map_tensor("embeddings.word.weight", "embed_tokens.weight"),
            **map_norm("layers.{layer}.attention.norm", f"{_LAYER}.input_layernorm"),
            **map_linear("layers.{layer}.attention.query", f"{_LAYER}.self_attn.q_proj"),
            **map_linear("layers.{layer}.attention.key", f"{_LAYER}.self_attn.k_proj"),
            **map_linear("layers.{layer}.attention.value", f"{_LAYER}.self_attn.v_proj"),
            **map_norm("layers.{layer}.attention.query_norm", f"{_LAYER}.self_attn.q_norm"),
            **map_norm("layers.{layer}.attention.key_norm", f"{_LAYER}.self_attn.k_norm"),
            **map_linear("layers.{layer}.attention.output", f"{_LAYER}.self_attn.o_proj"),
            **map_norm("layers.{layer}.mlp.norm", f"{_LAYER}.post_attention_layernorm"),
            **map_linear("layers.{layer}.mlp.gate", f"{_LAYER}.mlp.gate_proj"),
            **map_linear("layers.{layer}.mlp.up", f"{_LAYER}.mlp.up_proj"),
            **map_linear("layers.{layer}.mlp.down", f"{_LAYER}.mlp.down_proj"),
            **map_norm("final_norm", "norm"),
        }
    ),
)


class DecoderConfig(RotaryConfig):
    """The keys of config.json that decide the forward pass and that these families share."""

    model_type: str
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None
    intermediate_size: PositiveInt
    head_dim: PositiveInt | None = None
    hidden_act: str = "silu"
    rms_norm_eps: NonNegativeFloat = 1e-6
    layer_types: list[str] | None = None
    is_causal: bool | None = None
    use_bidirectional_attention: bool | None = None
    auto_map: dict[str, object] | None = None

    def has_causal_attention(self, path: Path) -> bool:
        """Return whether tokens see only what stands before them.

        Repositories with code of their own make such models bidirectional; whether they do, config.json says or
        nobody does, and the vectors of the wrong guess look as good as the right ones.
        """
        if self.is_causal is None and self.use_bidirectional_attention is None:
            if "AutoModel" in (self.auto_map or {}):
                raise UnsupportedArchitecture(
                    f"{path}: auto_map names code of the repository's own, and neither is_causal nor "
                    "use_bidirectional_attention says whether its attention is causal; add one of them to the file"
                )
            return True
        return self.is_causal is not False and not self.use_bidirectional_attention

    def find_window(self, path: Path, sliding_window: int) -> int:
        """Find how far a token sees. Source: `create_sliding_window_causal_mask`, whose window counts the token itself
        when causal, and when not counts to each side without it."""
        return sliding_window - 1 if self.has_causal_attention(path) else sliding_window

    def read_head_size(self, path: Path) -> int:
        return self.head_dim or compute_head_size(path, self.hidden_size, self.num_attention_heads)


def describe_attention(
    path: Path,
    config: DecoderConfig,
    *,
    qkv_bias: bool,
    output_bias: bool,
) -> Attention:
    """Describe the attention of a layer, without a window or norms of heads.

    Raises UnsupportedArchitecture when the heads cannot share the key/value heads.
    """
    size = config.read_head_size(path)
    kv_heads = config.num_key_value_heads or config.num_attention_heads
    if config.num_attention_heads % kv_heads:
        raise unsupported_error(path, "num_key_value_heads", kv_heads)
    return Attention(
        heads=config.num_attention_heads,
        kv_heads=kv_heads,
        head_size=size,
        scale=size**-0.5,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        causal=config.has_causal_attention(path),
        rotary=config.describe_rotary(path, size, DEFAULT_THETA),
    )


def describe_encoder(
    path: Path, config: DecoderConfig, attentions: list[Attention], mlp_bias: bool = False
) -> Encoder:
    """Describe the encoder around `attentions`, one a layer."""
    rms = Norm(NormKind.RMS, config.rms_norm_eps)
    mlp = Mlp(
        intermediate=config.intermediate_size,
        activation=read_activation(path, "hidden_act", config.hidden_act),
        gated=True,
        up_bias=mlp_bias,
        down_bias=mlp_bias,
    )
    return Encoder(
        family=config.model_type,
        hidden_size=config.hidden_size,
        max_positions=config.max_position_embeddings,
        embeddings=Embeddings(config.vocab_size, positions=None, token_types=0, norm=None),
        layers=tuple(Layer(attention, mlp, NormPlacement.PRE, rms) for attention in attentions),
        final_norm=rms,
        parameter_names=NAMES,
    )
