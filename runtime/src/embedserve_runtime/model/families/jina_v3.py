"""jina-embeddings-v3 as transformers has it (XLM-RoBERTa with rotary positions instead of the table), and all models
of the code that it comes from, xlm-roberta-flash-implementation: its first files, and jina-reranker-v2, which has the
table.

Sources: `JinaEmbeddingsV3Model` of transformers; `XLMRobertaFlashConfig` and `XLMRobertaModel` of that code. There the
`model_type` is XLM-RoBERTa's, and a weight that has adapters in the checkpoint is called
`parametrizations.weight.original`. Adapters for tasks: `task_adapters`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from embedserve_runtime.model.architecture import AbsolutePositions, Attention, Embeddings, Encoder
from embedserve_runtime.model.families.common import (
    Sources,
    describe_attention,
    describe_mlp,
    describe_post_norm_layer,
    layer_norm,
    map_linear,
    map_norm,
    map_query_key_value,
    map_tensor,
    unsupported_error,
)
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.parameter_names import ParameterNames
from embedserve_runtime.model.rotary import RopeParameters, RotaryConfig, describe_rotary

FAMILY = "jina_embeddings_v3"
DEFAULT_THETA = 20_000.0
FLASH_THETA = 10_000.0  # the default of `rotary_emb_base`
# In `auto_map` of config.json: the repository of the code, or its class where the code lies beside the weights.
FLASH_NAMES = ("xlm-roberta-flash-implementation", "XLMRobertaFlashConfig")
WEIGHT, ORIGINAL = ".weight", ".parametrizations.weight.original"


class JinaV3Config(RotaryConfig):
    """The keys of config.json that decide the forward pass."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    type_vocab_size: int = 1
    hidden_act: str = "gelu"
    layer_norm_eps: NonNegativeFloat = 1e-5


class FlashConfig(FileModel):
    """The keys of config.json of that code's own files, with its defaults."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    max_position_embeddings: PositiveInt
    type_vocab_size: int = 1
    hidden_act: str = "gelu"
    layer_norm_eps: NonNegativeFloat = 1e-5
    pad_token_id: int = 1
    position_embedding_type: str = "rotary"
    rotary_emb_base: PositiveFloat = FLASH_THETA


class _JinaV3DetectionConfig(FileModel):
    position_embedding_type: str = "absolute"
    auto_map: dict[str, object] | None = None


def _map_adapted(sources: Sources) -> Sources:
    """Return the map with a second name of each weight, the one that it has in a checkpoint with adapters."""
    return {
        ours: (
            *theirs,
            *(
                replace(source, tensor=source.tensor.removesuffix(WEIGHT) + ORIGINAL)
                for source in theirs
                if source.tensor.endswith(WEIGHT)
            ),
        )
        for ours, theirs in sources.items()
    }


# Of the repository, and of the class: transformers renames while it loads and saves.
_OLD, _NEW = "encoder.layers.{layer}", "layers.{layer}"
NAMES = ParameterNames(
    prefixes=("", "roberta."),
    sources=MappingProxyType(
        _map_adapted(
            {
                **map_tensor("embeddings.word.weight", "embeddings.word_embeddings.weight"),
                **map_tensor("embeddings.position.weight", "embeddings.position_embeddings.weight"),
                **map_tensor("embeddings.token_type.weight", "embeddings.token_type_embeddings.weight"),
                **map_norm("embeddings.norm", "emb_ln", "embeddings.LayerNorm"),
                **map_query_key_value(f"{_OLD}.mixer.Wqkv", f"{_NEW}.self_attn"),
                **map_linear(
                    "layers.{layer}.attention.output", f"{_OLD}.mixer.out_proj", f"{_NEW}.self_attn.o_proj"
                ),
                **map_norm(
                    "layers.{layer}.attention.norm", f"{_OLD}.norm1", f"{_NEW}.post_attention_layernorm"
                ),
                **map_linear("layers.{layer}.mlp.up", f"{_OLD}.mlp.fc1", f"{_NEW}.mlp.fc1"),
                **map_linear("layers.{layer}.mlp.down", f"{_OLD}.mlp.fc2", f"{_NEW}.mlp.fc2"),
                **map_norm("layers.{layer}.mlp.norm", f"{_OLD}.norm2", f"{_NEW}.post_mlp_layernorm"),
            }
        )
    ),
)


def is_flash(file: ModelFile) -> bool:
    """Return whether a config.json is of the code xlm-roberta-flash-implementation: nobody else writes "rotary" into
    that of an XLM-RoBERTa."""
    config = file.parse(_JinaV3DetectionConfig)
    return config.position_embedding_type == "rotary" or any(
        name in str(value) for value in (config.auto_map or {}).values() for name in FLASH_NAMES
    )


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(JinaV3Config)
    attention = describe_attention(path, config.hidden_size, config.num_attention_heads)
    rotary = config.describe_rotary(path, attention.head_size, DEFAULT_THETA)
    return _describe_encoder(path, config, replace(attention, rotary=rotary))


def describe_flash(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json of that code.

    Raises ModelInvalid or UnsupportedArchitecture.
    """
    path, config = file.path, file.parse(FlashConfig)
    attention = describe_attention(path, config.hidden_size, config.num_attention_heads)
    match config.position_embedding_type:
        case "rotary":
            settings = RopeParameters(rope_theta=config.rotary_emb_base)
            rotary = describe_rotary(path, settings, attention.head_size, config.max_position_embeddings)
            return _describe_encoder(path, config, replace(attention, rotary=rotary))
        case "absolute":
            encoder = _describe_encoder(path, config, attention)
            # Positions are counted from the one after padding, as in RoBERTa.
            offset = config.pad_token_id + 1
            positions = AbsolutePositions(config.max_position_embeddings, offset)
            return replace(
                encoder,
                max_positions=config.max_position_embeddings - offset,
                embeddings=replace(encoder.embeddings, positions=positions),
            )
        case kind:
            raise unsupported_error(path, "position_embedding_type", kind)


def _describe_encoder(path: Path, config: JinaV3Config | FlashConfig, attention: Attention) -> Encoder:
    """Describe the encoder around `attention`, without a table of positions."""
    layer = describe_post_norm_layer(
        attention,
        describe_mlp(path, "hidden_act", config.hidden_act, config.intermediate_size),
        layer_norm(config.layer_norm_eps),
    )
    return Encoder(
        family=FAMILY,
        hidden_size=config.hidden_size,
        max_positions=config.max_position_embeddings,
        embeddings=Embeddings(config.vocab_size, None, config.type_vocab_size, layer.norm),
        layers=(layer,) * config.num_hidden_layers,
        final_norm=None,
        parameter_names=NAMES,
    )
