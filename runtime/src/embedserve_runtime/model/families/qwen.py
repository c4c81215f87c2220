"""Qwen2 (biases on query, key and value) and Qwen3 (norms on the heads' queries and keys), causal or bidirectional;
bidirectional_pplx_qwen3, Perplexity's class, is Qwen3 with full attention.

Source: `Qwen2Model` and `Qwen3Model` of transformers. A window counts only with `use_sliding_window`, and then for the
layers from `max_window_layers` on, or as `layer_types` says.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from embedserve_runtime.model.architecture import Encoder, Norm, NormKind, QkNorm, QkNormScope
from embedserve_runtime.model.families import decoder
from embedserve_runtime.model.families.common import FULL, SLIDING, check_layer_types, unsupported_error
from embedserve_runtime.model.files import ModelFile


class QwenConfig(decoder.DecoderConfig):
    """The keys of config.json that decide the forward pass."""

    attention_bias: bool = False  # of Qwen3 only; Qwen2 always has the three biases
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28


BIDIRECTIONAL = "bidirectional_pplx_qwen3"
QWEN3_HEAD_SIZE = 128  # where config.json does not say


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    return describe_config(file.path, file.parse(QwenConfig))


def describe_config(path: Path, config: QwenConfig) -> Encoder:
    """Describe the encoder of a config.json that has been parsed."""
    is_qwen3 = config.model_type in ("qwen3", BIDIRECTIONAL)
    if config.model_type == BIDIRECTIONAL:
        config = config.model_copy(update={"is_causal": False})
    if is_qwen3 and config.head_dim is None:
        config = config.model_copy(update={"head_dim": QWEN3_HEAD_SIZE})
    qk_norm = QkNorm(Norm(NormKind.RMS, config.rms_norm_eps), QkNormScope.HEAD) if is_qwen3 else None
    windows = _list_windows(path, config)
    attention = replace(
        decoder.describe_attention(
            path,
            config,
            qkv_bias=config.attention_bias if is_qwen3 else True,
            output_bias=config.attention_bias if is_qwen3 else False,
        ),
        qk_norm=qk_norm,
    )
    attentions = [replace(attention, window=window) for window in windows]
    return decoder.describe_encoder(path, config, attentions)


def _list_windows(path: Path, config: QwenConfig) -> list[int | None]:
    size = config.sliding_window if config.use_sliding_window else None
    layer_types = config.layer_types or [
        SLIDING if size is not None and number >= config.max_window_layers else FULL
        for number in range(config.num_hidden_layers)
    ]
    check_layer_types(path, layer_types, config.num_hidden_layers)
    if size is None:
        if SLIDING in layer_types:
            raise unsupported_error(
                path, "layer_types", layer_types
            )  # transformers has no window to give them either
        return [None] * config.num_hidden_layers
    return [config.find_window(path, size) if kind == SLIDING else None for kind in layer_types]
