"""NomicBERT: post-norm layers, rotary positions, gated MLP; in v2 a mixture of experts in every second layer.

Sources: `NomicBertModel` of transformers, and the public repository nomic-ai/contrastors for config.json files with
the keys of GPT-2 (`n_embd`). Both write the same tensor names ("nomic_bert" in transformers' conversion_mapping.py):
`fc12` is activated, `fc11` multiplied.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Embeddings, Encoder, Experts, Mlp, Rotary
from embedserve_runtime.model.families.common import (
    compute_head_size,
    describe_attention,
    describe_attention_of_size,
    describe_post_norm_layer,
    layer_norm,
    map_linear,
    map_norm,
    map_query_key_value,
    map_tensor,
    merge_sources,
    read_activation,
    refuse,
    unsupported_error,
)
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames
from embedserve_runtime.model.rotary import RotaryConfig, compute_frequencies

DEFAULT_THETA = 1000.0
GATED_MULTIPLE = 256  # the source rounds the width of a gated MLP up to it
GATED = {"swiglu": Activation.SILU, "geglu": Activation.GELU}


class OwnConfig(FileModel):
    """The keys of a config.json of the public repository."""

    n_embd: PositiveInt
    n_head: PositiveInt
    n_layer: PositiveInt
    n_inner: PositiveInt | None = None
    n_positions: PositiveInt
    vocab_size: PositiveInt
    pad_vocab_size_multiple: PositiveInt = 1
    type_vocab_size: int = 2
    activation_function: str = "gelu"
    layer_norm_epsilon: NonNegativeFloat = 1e-5
    qkv_proj_bias: bool = True
    mlp_fc1_bias: bool = True
    mlp_fc2_bias: bool = True
    rotary_emb_base: PositiveFloat = 10_000.0
    rotary_emb_fraction: float = 0.0
    rotary_emb_interleaved: bool = False
    rotary_emb_scale_base: float | None = None
    rotary_head_dim: bool = False
    rotary_scaling_factor: PositiveFloat | None = None
    max_trained_positions: PositiveInt = 2048
    prenorm: bool = False
    parallel_block: bool = False
    use_rms_norm: bool | None = False
    causal: bool = False
    norm_mlp: bool = False
    num_heads_kv: PositiveInt | None = None
    scale_attn_weights: bool = True
    num_experts: int = 0
    moe_every_n_layers: int = 0
    moe_top_k: int = 1
    moe_normalize_expert_weights: bool | float | None = False
    expert_choice_router: bool | None = False
    num_shared_experts: int | None = 0
    ffn_div: int | None = 1

    @property
    def has_experts(self) -> bool:
        return self.num_experts > 0 and self.moe_every_n_layers > 0

    def is_mixture(self, layer: int) -> bool:
        """Return whether the MLP of the layer is a mixture: the second of every `moe_every_n_layers`, as the source
        counts."""
        return self.has_experts and layer % self.moe_every_n_layers == 1


class TransformersConfig(RotaryConfig):
    """The keys of a config.json of transformers' own class."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    type_vocab_size: int = 2
    hidden_act: str = "silu"
    layer_norm_eps: NonNegativeFloat = 1e-12
    head_dim: PositiveInt | None = None
    num_experts: int = 0


class _Keys(FileModel):
    n_embd: PositiveInt | None = None


_OLD, _NEW = "encoder.layers.{layer}", "layers.{layer}"
NAMES = ParameterNames(
    prefixes=("", "bert.", "nomic_bert."),
    sources=MappingProxyType(
        {
            **map_tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
            **map_tensor("embeddings.token_type.weight", "embeddings.token_type_embeddings.weight"),
            **map_norm("embeddings.norm", "emb_ln", "embeddings.LayerNorm"),
            **map_query_key_value(f"{_OLD}.attn.Wqkv", f"{_NEW}.self_attn"),
            **map_linear(
                "layers.{layer}.attention.output", f"{_OLD}.attn.out_proj", f"{_NEW}.self_attn.o_proj"
            ),
            **map_norm("layers.{layer}.attention.norm", f"{_OLD}.norm1", f"{_NEW}.post_attention_layernorm"),
            **map_linear("layers.{layer}.mlp.gate", f"{_OLD}.mlp.fc12", f"{_NEW}.mlp.gate_proj"),
            **merge_sources(
                # fc1: an MLP without a gate.
                map_linear(
                    "layers.{layer}.mlp.up", f"{_OLD}.mlp.fc11", f"{_OLD}.mlp.fc1", f"{_NEW}.mlp.up_proj"
                ),
                map_linear("layers.{layer}.mlp.down", f"{_OLD}.mlp.fc2", f"{_NEW}.mlp.down_proj"),
                map_tensor("layers.{layer}.mlp.up.weight", f"{_OLD}.mlp.experts.mlp.w1"),
                map_tensor("layers.{layer}.mlp.down.weight", f"{_OLD}.mlp.experts.mlp.w2"),
            ),
            **map_norm("layers.{layer}.mlp.norm", f"{_OLD}.norm2", f"{_NEW}.post_mlp_layernorm"),
            **map_tensor("layers.{layer}.mlp.router.weight", f"{_OLD}.mlp.router.layer.weight"),
            **map_tensor("layers.{layer}.mlp.bias", f"{_OLD}.mlp.experts.bias"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    if file.parse(_Keys).n_embd is None:
        return _describe_transformers_model(file.path, file.parse(TransformersConfig))
    return _describe_own_model(file.path, file.parse(OwnConfig))


def _describe_transformers_model(path: Path, config: TransformersConfig) -> Encoder:
    # transformers has no class for the mixture; it would read such a checkpoint without it.
    refuse(path, [("num_experts", config.num_experts, 0)])
    size = config.head_dim or compute_head_size(path, config.hidden_size, config.num_attention_heads)
    act = read_activation(path, "hidden_act", config.hidden_act)
    layer = describe_post_norm_layer(
        replace(
            describe_attention_of_size(size, config.num_attention_heads, bias=False),
            rotary=config.describe_rotary(path, size, DEFAULT_THETA),
        ),
        Mlp(config.intermediate_size, act, gated=True, up_bias=False, down_bias=False),
        layer_norm(config.layer_norm_eps),
    )
    return Encoder(
        family="nomic_bert",
        hidden_size=config.hidden_size,
        max_positions=config.max_position_embeddings,
        embeddings=Embeddings(config.vocab_size, None, config.type_vocab_size, layer.norm),
        layers=(layer,) * config.num_hidden_layers,
        final_norm=None,
        parameter_names=NAMES,
    )


def _describe_own_model(path: Path, config: OwnConfig) -> Encoder:
    _refuse_what_is_not_there(path, config)
    attention = describe_attention(path, config.n_embd, config.n_head, bias=config.qkv_proj_bias)
    rotated = attention.head_size * config.rotary_emb_fraction
    if not 0 < rotated <= attention.head_size or rotated % 2:
        raise unsupported_error(path, "rotary_emb_fraction", config.rotary_emb_fraction)
    positions = Rotary(tuple(float(f) for f in compute_frequencies(config.rotary_emb_base, int(rotated))))
    layer = describe_post_norm_layer(
        replace(attention, rotary=positions),
        _describe_own_mlp(path, config),
        layer_norm(config.layer_norm_epsilon),
    )
    with_experts = replace(layer, mlp=_describe_experts(path, config)) if config.has_experts else layer
    multiple = config.pad_vocab_size_multiple
    vocabulary = -(-config.vocab_size // multiple) * multiple
    # With a scaling factor the base grows with each text longer than the trained positions; up to them it rests.
    trained = config.max_trained_positions
    grows = bool(config.rotary_scaling_factor) and trained < config.n_positions
    return Encoder(
        family="nomic_bert",
        hidden_size=config.n_embd,
        max_positions=trained if grows else config.n_positions,
        embeddings=Embeddings(vocabulary, None, config.type_vocab_size, layer.norm),
        layers=tuple(
            with_experts if config.is_mixture(number) else layer for number in range(config.n_layer)
        ),
        final_norm=None,
        parameter_names=NAMES,
        ignored=(f"{path.name}: rotary_scaling_factor: texts end at max_trained_positions, {trained} tokens",)
        if grows
        else (),
    )


def _refuse_what_is_not_there(path: Path, config: OwnConfig) -> None:
    refuse(
        path,
        (
            ("prenorm", config.prenorm, False),
            ("parallel_block", config.parallel_block, False),
            ("use_rms_norm", bool(config.use_rms_norm), False),
            ("causal", config.causal, False),
            ("norm_mlp", config.norm_mlp, False),
            ("num_heads_kv", config.num_heads_kv or config.n_head, config.n_head),
            ("rotary_emb_interleaved", config.rotary_emb_interleaved, False),
            ("rotary_emb_scale_base", config.rotary_emb_scale_base, None),
            ("rotary_head_dim", config.rotary_head_dim, False),
            ("scale_attn_weights", config.scale_attn_weights, True),
        ),
    )


def _describe_own_mlp(path: Path, config: OwnConfig) -> Mlp:
    bias = {"up_bias": config.mlp_fc1_bias, "down_bias": config.mlp_fc2_bias}
    if config.activation_function in GATED:
        width = config.n_inner or 8 * config.n_embd // 3
        width = -(-width // GATED_MULTIPLE) * GATED_MULTIPLE
        return Mlp(width, GATED[config.activation_function], gated=True, **bias)
    if config.activation_function != "gelu":  # "glu" has a gate by sigmoid, which no known model uses
        raise unsupported_error(path, "activation_function", config.activation_function)
    return Mlp(config.n_inner or 4 * config.n_embd, Activation.GELU, gated=False, **bias)


def _describe_experts(path: Path, config: OwnConfig) -> Experts:
    """Describe the mixture as the public code runs it: shares of the chosen experts as they are, one bias for all."""
    refuse(
        path,
        (
            ("activation_function", config.activation_function, "gelu"),
            ("moe_normalize_expert_weights", bool(config.moe_normalize_expert_weights), False),
            ("expert_choice_router", bool(config.expert_choice_router), False),
            ("num_shared_experts", config.num_shared_experts or 0, 0),
            ("ffn_div", config.ffn_div or 1, 1),
        ),
    )
    if not 0 < config.moe_top_k <= config.num_experts:
        raise unsupported_error(path, "moe_top_k", config.moe_top_k)
    return Experts(config.num_experts, config.moe_top_k, config.n_inner or 4 * config.n_embd, Activation.GELU)
