"""The encoder of T5: RMS norms first, a learned bias by relative distance shared by all layers, scores as they are.

Source: `T5EncoderModel` of transformers. The text has no longest length; `n_positions` is the one it was trained with,
512 where config.json does not say.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from pydantic import NonNegativeFloat, PositiveInt

from embedserve_runtime.model.architecture import (
    Attention,
    Embeddings,
    Encoder,
    Layer,
    Mlp,
    Norm,
    NormKind,
    NormPlacement,
    RelativeBuckets,
)
from embedserve_runtime.model.families.common import (
    map_linear,
    map_norm,
    map_tensor,
    read_activation,
    unsupported_error,
)
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames

# What "gated-gelu" means, of all names of gates.
GATED_GELU = "gelu_new"


class T5Config(FileModel):
    """The keys of config.json that decide the forward pass."""

    vocab_size: PositiveInt
    d_model: PositiveInt
    d_kv: PositiveInt
    d_ff: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    n_positions: PositiveInt = 512
    relative_attention_num_buckets: PositiveInt = 32
    relative_attention_max_distance: PositiveInt = 128
    layer_norm_epsilon: NonNegativeFloat = 1e-6
    feed_forward_proj: str = "relu"


_ATTENTION, _MLP = "encoder.block.{layer}.layer.0", "encoder.block.{layer}.layer.1"
_DENSE = f"{_MLP}.DenseReluDense"
NAMES = ParameterNames(
    prefixes=("", "transformer."),
    sources=MappingProxyType(
        {
            **map_tensor("embeddings.word.weight", "shared.weight", "encoder.embed_tokens.weight"),
            **map_tensor(
                "relative_bias.weight", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            ),
            **map_norm("layers.{layer}.attention.norm", f"{_ATTENTION}.layer_norm"),
            **map_linear("layers.{layer}.attention.query", f"{_ATTENTION}.SelfAttention.q"),
            **map_linear("layers.{layer}.attention.key", f"{_ATTENTION}.SelfAttention.k"),
            **map_linear("layers.{layer}.attention.value", f"{_ATTENTION}.SelfAttention.v"),
            **map_linear("layers.{layer}.attention.output", f"{_ATTENTION}.SelfAttention.o"),
            **map_norm("layers.{layer}.mlp.norm", f"{_MLP}.layer_norm"),
            **map_linear("layers.{layer}.mlp.gate", f"{_DENSE}.wi_0"),
            **map_linear("layers.{layer}.mlp.up", f"{_DENSE}.wi", f"{_DENSE}.wi_1"),
            **map_linear("layers.{layer}.mlp.down", f"{_DENSE}.wo"),
            **map_norm("final_norm", "encoder.final_layer_norm"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(T5Config)
    rms = Norm(NormKind.RMS, config.layer_norm_epsilon)
    attention = Attention(
        heads=config.num_heads,
        kv_heads=config.num_heads,
        head_size=config.d_kv,
        scale=1.0,
        qkv_bias=False,
        output_bias=False,
        distance_bias=RelativeBuckets(
            config.relative_attention_num_buckets, config.relative_attention_max_distance
        ),
    )
    layer = Layer(attention, _describe_mlp(path, config), NormPlacement.PRE, rms)
    return Encoder(
        family="t5",
        hidden_size=config.d_model,
        max_positions=config.n_positions,
        embeddings=Embeddings(config.vocab_size, positions=None, token_types=0, norm=None),
        layers=(layer,) * config.num_layers,
        final_norm=rms,
        parameter_names=NAMES,
    )


def _describe_mlp(path: Path, config: T5Config) -> Mlp:
    """Describe the MLP by `feed_forward_proj`: "relu", "gated-gelu" and the like. Source: `T5Config.__post_init__`."""
    gate, _, name = config.feed_forward_proj.rpartition("-")
    if gate not in ("", "gated"):
        raise unsupported_error(path, "feed_forward_proj", config.feed_forward_proj)
    if config.feed_forward_proj == "gated-gelu":
        name = GATED_GELU
    return Mlp(
        intermediate=config.d_ff,
        activation=read_activation(path, "feed_forward_proj", name),
        gated=bool(gate),
        up_bias=False,
        down_bias=False,
    )
