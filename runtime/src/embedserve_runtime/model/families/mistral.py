"""Mistral: the common decoder, with one window for all layers.

Source: `MistralModel` of transformers.
"""

from __future__ import annotations

from dataclasses import replace

from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.families import decoder
from embedserve_runtime.model.families.common import refuse
from embedserve_runtime.model.files import ModelFile


class MistralConfig(decoder.DecoderConfig):
    """The keys of config.json that decide the forward pass."""

    sliding_window: int | None = 4096


def describe(file: ModelFile) -> Encoder:
    """The encoder that `file`, a config.json, describes. Raises ModelInvalid or UnsupportedArchitecture."""
    path, config = file.path, file.parse(MistralConfig)
    # transformers ignores it for this model type; a model that has it was trained as something else.
    refuse(path, [("layer_types", config.layer_types, None)])
    size = config.sliding_window
    window = None if size is None else config.find_window(path, size)
    attention = decoder.describe_attention(path, config, qkv_bias=False, output_bias=False)
    return decoder.describe_encoder(
        path, config, [replace(attention, window=window)] * config.num_hidden_layers
    )
