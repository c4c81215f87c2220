"""NomicBERT: post-norm layers, rotary positions, gated MLP.

Sources: `NomicBertModel` of transformers, and the public repository nomic-ai/contrastors for config.json files with
the keys of GPT-2 (`n_embd`). Both write the same tensor names ("nomic_bert" in transformers' conversion_mapping.py):
`fc12` is activated, `fc11` multiplied.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.architecture import (
    Activation,
    Attention,
    Embeddings,
    Encoder,
    Layer,
    Mlp,
    Norm,
    NormKind,
    NormPlacement,
    ParameterNames,
    Rotary,
)
from embedserve_runtime.model.families.common import (
    activation,
    either,
    head_size,
    linear,
    norm,
    refuse,
    tensor,
    unsupported,
)
from embedserve_runtime.model.files import FileModel, read_json
from embedserve_runtime.model.rotary import RotaryConfig, frequencies

DEFAULT_THETA = 1000.0
GATED_MULTIPLE = 256  # the source rounds the width of a gated MLP up to it
GATED = {"swiglu": Activation.SILU, "geglu": Activation.GELU}


class OwnConfig(FileModel):
    """The keys of a config.json of the public repository."""

    n_embd: int
    n_head: int
    n_layer: int
    n_inner: int | None = None
    n_positions: int
    vocab_size: int
    pad_vocab_size_multiple: int = 1
    type_vocab_size: int = 2
    activation_function: str = "gelu"
    layer_norm_epsilon: float = 1e-5
    qkv_proj_bias: bool = True
    mlp_fc1_bias: bool = True
    mlp_fc2_bias: bool = True
    rotary_emb_base: float = 10_000.0
    rotary_emb_fraction: float = 0.0
    rotary_emb_interleaved: bool = False
    rotary_emb_scale_base: float | None = None
    rotary_head_dim: bool = False
    rotary_scaling_factor: float | None = None
    max_trained_positions: int = 2048
    prenorm: bool = False
    parallel_block: bool = False
    use_rms_norm: bool | None = False
    causal: bool = False
    norm_mlp: bool = False
    num_heads_kv: int | None = None
    num_experts: int = 0
    moe_every_n_layers: int = 0


class TransformersConfig(RotaryConfig):
    """The keys of a config.json of transformers' own class."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    type_vocab_size: int = 2
    hidden_act: str = "silu"
    layer_norm_eps: float = 1e-12
    head_dim: int | None = None


class _Keys(FileModel):
    n_embd: int | None = None


_OLD, _NEW = "encoder.layers.{layer}", "layers.{layer}"
NAMES = ParameterNames(
    prefixes=("", "bert.", "nomic_bert."),
    sources=MappingProxyType(
        {
            **tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
            **tensor("embeddings.token_type.weight", "embeddings.token_type_embeddings.weight"),
            **norm("embeddings.norm", "emb_ln", "embeddings.LayerNorm"),
            **either(
                *(
                    linear(f"layers.{{layer}}.attention.{ours}", f"{_OLD}.attn.Wqkv", part=part, parts=3)
                    for part, ours in enumerate(("query", "key", "value"))
                ),
                *(
                    linear(f"layers.{{layer}}.attention.{ours}", f"{_NEW}.self_attn.{theirs}")
                    for ours, theirs in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
                ),
            ),
            **linear("layers.{layer}.attention.output", f"{_OLD}.attn.out_proj", f"{_NEW}.self_attn.o_proj"),
            **norm("layers.{layer}.attention.norm", f"{_OLD}.norm1", f"{_NEW}.post_attention_layernorm"),
            # fc1: an MLP without a gate.
            **linear("layers.{layer}.mlp.up", f"{_OLD}.mlp.fc11", f"{_OLD}.mlp.fc1", f"{_NEW}.mlp.up_proj"),
            **linear("layers.{layer}.mlp.gate", f"{_OLD}.mlp.fc12", f"{_NEW}.mlp.gate_proj"),
            **linear("layers.{layer}.mlp.down", f"{_OLD}.mlp.fc2", f"{_NEW}.mlp.down_proj"),
            **norm("layers.{layer}.mlp.norm", f"{_OLD}.norm2", f"{_NEW}.post_mlp_layernorm"),
        }
    ),
)


def describe(folder: Path) -> Encoder:
    """The encoder that `folder`/config.json describes. Raises ModelInvalid or UnsupportedArchitecture."""
    path = folder / "config.json"
    if read_json(path, _Keys).n_embd is None:
        return _of_transformers(path, read_json(path, TransformersConfig))
    return _of_its_own(path, read_json(path, OwnConfig))


def _of_transformers(path: Path, config: TransformersConfig) -> Encoder:
    size = config.head_dim or head_size(path, config.hidden_size, config.num_attention_heads)
    act = activation(path, "hidden_act", config.hidden_act)
    mlp = Mlp(config.intermediate_size, act, gated=True, up_bias=False, down_bias=False)
    positions = config.rotary(path, size, DEFAULT_THETA)
    return _encoder(
        attention=_attention(config.num_attention_heads, size, positions, bias=False),
        mlp=mlp,
        layer_norm=Norm(NormKind.LAYER, config.layer_norm_eps),
        embeddings=(config.vocab_size, config.type_vocab_size, config.hidden_size),
        layers=config.num_hidden_layers,
        max_tokens=config.max_position_embeddings,
    )


def _of_its_own(path: Path, config: OwnConfig) -> Encoder:
    _refuse_what_is_not_there(path, config)
    size = head_size(path, config.n_embd, config.n_head)
    rotated = size * config.rotary_emb_fraction
    if not 0 < rotated <= size or rotated % 2:
        raise unsupported(path, "rotary_emb_fraction", config.rotary_emb_fraction)
    positions = Rotary(tuple(float(f) for f in frequencies(config.rotary_emb_base, int(rotated))))
    multiple = config.pad_vocab_size_multiple
    # With a scaling factor the base grows with each text longer than the trained positions; up to them it rests.
    longest = config.max_trained_positions if config.rotary_scaling_factor else config.n_positions
    return _encoder(
        attention=_attention(config.n_head, size, positions, bias=config.qkv_proj_bias),
        mlp=_own_mlp(path, config),
        layer_norm=Norm(NormKind.LAYER, config.layer_norm_epsilon),
        embeddings=(-(-config.vocab_size // multiple) * multiple, config.type_vocab_size, config.n_embd),
        layers=config.n_layer,
        max_tokens=min(longest, config.n_positions),
    )


def _refuse_what_is_not_there(path: Path, config: OwnConfig) -> None:
    if config.num_experts and config.moe_every_n_layers:
        raise UnsupportedArchitecture(
            f"{path}: num_experts = {config.num_experts}: mixture-of-experts layers of NomicBERT v2 are not supported"
        )
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
        ),
    )


def _own_mlp(path: Path, config: OwnConfig) -> Mlp:
    bias = {"up_bias": config.mlp_fc1_bias, "down_bias": config.mlp_fc2_bias}
    if config.activation_function in GATED:
        width = config.n_inner or 8 * config.n_embd // 3
        width = -(-width // GATED_MULTIPLE) * GATED_MULTIPLE
        return Mlp(width, GATED[config.activation_function], gated=True, **bias)
    if config.activation_function != "gelu":  # "glu" has a gate by sigmoid, which no known model uses
        raise unsupported(path, "activation_function", config.activation_function)
    return Mlp(config.n_inner or 4 * config.n_embd, Activation.GELU, gated=False, **bias)


def _attention(heads: int, size: int, positions: Rotary, bias: bool) -> Attention:
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_size=size,
        scale=size**-0.5,
        qkv_bias=bias,
        output_bias=bias,
        rotary=positions,
    )


def _encoder(
    *,
    attention: Attention,
    mlp: Mlp,
    layer_norm: Norm,
    embeddings: tuple[int, int, int],
    layers: int,
    max_tokens: int,
) -> Encoder:
    """embeddings: rows of words, rows of token types, hidden size."""
    words, types, hidden = embeddings
    layer = Layer(attention, mlp, NormPlacement.POST, layer_norm)
    return Encoder(
        family="nomic_bert",
        hidden_size=hidden,
        max_tokens=max_tokens,
        embeddings=Embeddings(words, positions=None, token_types=types, norm=layer_norm),
        layers=(layer,) * layers,
        final_norm=None,
        parameter_names=NAMES,
    )
