"""EmbeddingGemma 2, its part that reads text: Gemma's layers both ways, with norms of values, other heads in the global
layers, inputs by layer, and a projection behind the final norm.

Source: `EmbeddingGemma2Model` and `EmbeddingGemma2TextModel` of transformers. A window is a radius there. The towers
that read images and sound are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import Field, NonNegativeFloat, PositiveInt

from embedserve_runtime.model.architecture import (
    Attention,
    Encoder,
    Layer,
    LayerInputs,
    Mlp,
    Norm,
    NormKind,
    NormPlacement,
    QkNorm,
    QkNormScope,
)
from embedserve_runtime.model.families import gemma
from embedserve_runtime.model.families.common import (
    FULL,
    SLIDING,
    check_layer_types,
    map_linear,
    map_norm,
    map_tensor,
    read_activation,
    unsupported_error,
)
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames
from embedserve_runtime.model.rotary import LayerTypesConfig, describe_rotary

FAMILY = "embedding_gemma2"
# Its authors state 8,192 tokens; config.json has room for 262,144, whose rotary tables would take 800 MB.
MAX_TOKENS = 32_768
THETAS: Mapping[str, float] = MappingProxyType({FULL: 1_000_000.0, SLIDING: 10_000.0})


class _LayerConfig(FileModel):
    """The sizes that one layer has of its own."""

    head_dim: PositiveInt | None = None
    num_key_value_heads: PositiveInt | None = None


class EmbeddingGemma2Config(LayerTypesConfig):
    """The keys that decide the forward pass, with the defaults of transformers."""

    vocab_size: PositiveInt = 262_144
    hidden_size: PositiveInt = 512
    intermediate_size: PositiveInt = 2048
    num_hidden_layers: PositiveInt = 24
    num_attention_heads: PositiveInt = 4
    num_key_value_heads: PositiveInt = 2
    head_dim: PositiveInt = 256
    global_head_dim: PositiveInt = 512
    num_global_key_value_heads: PositiveInt = 1
    per_layer_config: Mapping[int, _LayerConfig] | None = None
    hidden_activation: str = gemma.TANH_GELU
    max_position_embeddings: PositiveInt = 262_144
    rms_norm_eps: NonNegativeFloat = 1e-6
    attention_bias: bool = False
    sliding_window: PositiveInt = 512
    sliding_window_pattern: PositiveInt = 6
    layer_types: list[str] | None = None
    hidden_size_per_layer_input: PositiveInt = 512
    embedding_dim: PositiveInt = 768

    def list_layer_types(self, path: Path) -> list[str]:
        """Return the type of each layer; the last one is always global. Raises UnsupportedArchitecture."""
        types = self.layer_types or [
            FULL if (number + 1) % self.sliding_window_pattern == 0 else SLIDING
            for number in range(self.num_hidden_layers)
        ]
        return [*check_layer_types(path, types, self.num_hidden_layers)[:-1], FULL]

    def find_layer(self, number: int, kind: str) -> tuple[int, int]:
        """Find the size of a layer's heads, and how many keys and values it has."""
        size, kv_heads = self.head_dim, self.num_key_value_heads
        if self.per_layer_config is None:
            return (
                (size, kv_heads)
                if kind == SLIDING
                else (
                    self.global_head_dim,
                    self.num_global_key_value_heads,
                )
            )
        own = self.per_layer_config.get(number, _LayerConfig())
        return own.head_dim or size, own.num_key_value_heads or kv_heads


class _CompositeConfig(FileModel):
    text_config: EmbeddingGemma2Config = Field(default_factory=EmbeddingGemma2Config)


_LAYER = "layers.{layer}"
NAMES = ParameterNames(
    prefixes=("language_model.", "model.language_model.", "", "model."),
    sources=MappingProxyType(
        {
            **gemma.NAMES_AROUND.sources,
            **map_linear("layer_inputs.projection", "ple.per_layer_model_projection"),
            **map_norm("layer_inputs.norm", "ple.per_layer_projection_norm"),
            **map_linear("layers.{layer}.layer_input.gate", f"{_LAYER}.ple_block.per_layer_input_gate"),
            **map_linear("layers.{layer}.layer_input.projection", f"{_LAYER}.ple_block.per_layer_projection"),
            **map_norm("layers.{layer}.layer_input.norm", f"{_LAYER}.ple_block.post_per_layer_input_norm"),
            **map_tensor("layers.{layer}.layer_input.factor", f"{_LAYER}.layer_scalar"),
            **map_linear("output", "embedding_projection"),
        }
    ),
)


def describe(file: ModelFile) -> Encoder:
    """Describe the text encoder of the whole model. Raises ModelInvalid or UnsupportedArchitecture."""
    return _describe(file.path, file.parse(_CompositeConfig).text_config)


def describe_text(file: ModelFile) -> Encoder:
    """Describe the text encoder that is saved alone. Raises ModelInvalid or UnsupportedArchitecture."""
    return _describe(file.path, file.parse(EmbeddingGemma2Config))


def _describe(path: Path, config: EmbeddingGemma2Config) -> Encoder:
    norm = Norm(NormKind.RMS, config.rms_norm_eps)
    activation = read_activation(path, "hidden_activation", config.hidden_activation)
    mlp = Mlp(config.intermediate_size, activation, gated=True, up_bias=False, down_bias=False)
    layers = [
        Layer(_describe_attention(path, config, number, kind), mlp, NormPlacement.SANDWICH, norm)
        for number, kind in enumerate(config.list_layer_types(path))
    ]
    return Encoder(
        family=FAMILY,
        hidden_size=config.hidden_size,
        max_positions=min(config.max_position_embeddings, MAX_TOKENS),
        embeddings=gemma.describe_embeddings(config.vocab_size, config.hidden_size),
        layers=tuple(layers),
        final_norm=norm,
        parameter_names=NAMES,
        layer_inputs=LayerInputs(
            config.hidden_size_per_layer_input, config.hidden_size**-0.5, activation, norm
        ),
        output=config.embedding_dim,
    )


def _describe_attention(path: Path, config: EmbeddingGemma2Config, number: int, kind: str) -> Attention:
    size, kv_heads = config.find_layer(number, kind)
    if config.num_attention_heads % kv_heads:
        raise unsupported_error(path, "num_key_value_heads", kv_heads)
    settings = config.find_parameters(kind, THETAS[kind], scaled=False)
    return Attention(
        heads=config.num_attention_heads,
        kv_heads=kv_heads,
        head_size=size,
        scale=1.0,
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        window=config.sliding_window if kind == SLIDING else None,
        qk_norm=QkNorm(Norm(NormKind.RMS, config.rms_norm_eps), QkNormScope.HEAD),
        rotary=describe_rotary(path, settings, size, config.max_position_embeddings),
        value_norm_eps=config.rms_norm_eps,
    )
