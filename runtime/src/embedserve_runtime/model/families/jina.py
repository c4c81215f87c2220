"""JinaBERT v2 (ALiBi, gated MLP) and its variant for code (norms on queries and keys, one more norm in each layer).

config.json calls them "bert" and names code that transformers does not have: the public repositories
jinaai/jina-bert-implementation and jinaai/jina-bert-v2-qk-post-norm. Facts from there and from the paper
(https://arxiv.org/abs/2310.19923); the slopes are ALiBi's (https://arxiv.org/abs/2108.12409), applied to both sides.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from pydantic import NonNegativeFloat, PositiveInt

from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Alibi, Embeddings, Encoder, Mlp, QkNorm, QkNormScope
from embedserve_runtime.model.families.common import (
    describe_attention,
    describe_post_norm_layer,
    layer_norm,
    map_linear,
    map_norm,
    map_tensor,
    refuse,
    unsupported_error,
)
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames

CODE_VARIANT = "jina-bert-v2-qk-post-norm"
ACTIVATIONS = {"geglu": Activation.GELU, "reglu": Activation.RELU}


class JinaConfig(FileModel):
    """The keys of config.json that decide the forward pass."""

    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    type_vocab_size: int = 2
    layer_norm_eps: NonNegativeFloat = 1e-12
    position_embedding_type: str = "absolute"
    feed_forward_type: str = "geglu"
    use_qk_norm: bool = True  # of the code variant only
    is_decoder: bool = False
    auto_map: dict[str, object] | None = None

    @property
    def is_code_variant(self) -> bool:
        return any(CODE_VARIANT in str(reference) for reference in (self.auto_map or {}).values())


class _JinaDetectionConfig(FileModel):
    architectures: list[str] | None = None
    auto_map: dict[str, object] | None = None
    position_embedding_type: str = "absolute"


_LAYER = "encoder.layer.{layer}"
_SHARED = {
    **map_tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
    **map_tensor("embeddings.token_type.weight", "embeddings.token_type_embeddings.weight"),
    **map_norm("embeddings.norm", "embeddings.LayerNorm"),
    **map_linear("layers.{layer}.attention.query", f"{_LAYER}.attention.self.query"),
    **map_linear("layers.{layer}.attention.key", f"{_LAYER}.attention.self.key"),
    **map_linear("layers.{layer}.attention.value", f"{_LAYER}.attention.self.value"),
    **map_linear("layers.{layer}.attention.output", f"{_LAYER}.attention.output.dense"),
}
NAMES = ParameterNames(
    prefixes=("", "bert."),
    sources=MappingProxyType(
        {
            **_SHARED,
            **map_norm("layers.{layer}.attention.norm", f"{_LAYER}.attention.output.LayerNorm"),
            # The first half of the rows is activated, the second multiplied.
            **map_linear("layers.{layer}.mlp.gate", f"{_LAYER}.mlp.gated_layers", part=0, parts=2),
            **map_linear("layers.{layer}.mlp.up", f"{_LAYER}.mlp.gated_layers", part=1, parts=2),
            **map_linear("layers.{layer}.mlp.down", f"{_LAYER}.mlp.wo"),
            **map_norm("layers.{layer}.mlp.norm", f"{_LAYER}.mlp.layernorm"),
        }
    ),
)
CODE_NAMES = ParameterNames(
    prefixes=("", "bert."),
    sources=MappingProxyType(
        {
            **_SHARED,
            **map_norm("layers.{layer}.attention.query_norm", f"{_LAYER}.attention.self.layer_norm_q"),
            **map_norm("layers.{layer}.attention.key_norm", f"{_LAYER}.attention.self.layer_norm_k"),
            **map_norm("layers.{layer}.attention.inner_norm", f"{_LAYER}.attention.output.LayerNorm"),
            **map_norm("layers.{layer}.attention.norm", f"{_LAYER}.layer_norm_1"),
            # Here the second half is activated.
            **map_linear("layers.{layer}.mlp.up", f"{_LAYER}.mlp.up_gated_layer", part=0, parts=2),
            **map_linear("layers.{layer}.mlp.gate", f"{_LAYER}.mlp.up_gated_layer", part=1, parts=2),
            **map_linear("layers.{layer}.mlp.down", f"{_LAYER}.mlp.down_layer"),
            **map_norm("layers.{layer}.mlp.norm", f"{_LAYER}.layer_norm_2"),
        }
    ),
)


def is_jina(file: ModelFile) -> bool:
    """Return whether a config.json with model_type "bert" means a JinaBERT."""
    config = file.parse(_JinaDetectionConfig)
    classes = [*(config.architectures or []), *map(str, (config.auto_map or {}).values())]
    return config.position_embedding_type == "alibi" or any("jina" in name.lower() for name in classes)


def compute_alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return 2^(-8/n), 2^(-16/n), ... for the largest power of two n <= heads, and for the heads beyond it every second
    slope of the sequence for 2n. Source: the paper's own code, github.com/ofirpress/attention_with_linear_biases."""
    power = 1 << (heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * step / power) for step in range(1, power + 1)]
    between = [2.0 ** (-8.0 * step / (2 * power)) for step in range(1, 2 * power + 1, 2)]
    return tuple(first + between[: heads - power])


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(JinaConfig)
    code = config.is_code_variant
    refuse(
        path,
        (
            ("position_embedding_type", config.position_embedding_type, "alibi"),
            ("use_qk_norm", config.use_qk_norm or not code, True),
            ("is_decoder", config.is_decoder, False),
        ),
    )
    if config.feed_forward_type not in ACTIVATIONS:
        raise unsupported_error(path, "feed_forward_type", config.feed_forward_type)
    the_norm = layer_norm(config.layer_norm_eps)
    attention = replace(
        describe_attention(path, config.hidden_size, config.num_attention_heads),
        qk_norm=QkNorm(the_norm, QkNormScope.ALL) if code else None,
        distance_bias=Alibi(compute_alibi_slopes(config.num_attention_heads)),
    )
    act = ACTIVATIONS[config.feed_forward_type]
    mlp = Mlp(config.intermediate_size, act, gated=True, up_bias=False, down_bias=True)
    layer = replace(describe_post_norm_layer(attention, mlp, the_norm), inner_norm=code)
    return Encoder(
        family="jina-bert-code" if code else "jina-bert",
        hidden_size=config.hidden_size,
        max_positions=config.max_position_embeddings,
        embeddings=Embeddings(config.vocab_size, None, config.type_vocab_size, the_norm),
        layers=(layer,) * config.num_hidden_layers,
        final_norm=None,
        parameter_names=CODE_NAMES if code else NAMES,
    )
