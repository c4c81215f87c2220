"""Mistral: the common decoder, with one window for all layers. Ministral 3: Mistral up to the length at which it begins
to scale queries by their position.

Source: `MistralModel` and `Ministral3Model` of transformers. The latter's factor, 1 + beta * log(1 + position // n), is
1 for the first n = `original_max_position_embeddings` tokens; longer texts are not taken.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import NonNegativeFloat

from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.families import decoder
from embedserve_runtime.model.families.common import refuse
from embedserve_runtime.model.files import ModelFile


class MistralConfig(decoder.DecoderConfig):
    """The keys of config.json that decide the forward pass."""

    sliding_window: int | None = 4096


class Ministral3Config(MistralConfig):
    """The keys of config.json that decide the forward pass of Ministral 3, with its defaults."""

    sliding_window: int | None = None
    rms_norm_eps: NonNegativeFloat = 1e-5


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    return _describe(file, file.parse(MistralConfig))


def describe_ministral3(file: ModelFile) -> Encoder:
    """Describe the encoder of a Ministral 3. Raises ModelInvalid or UnsupportedArchitecture."""
    config = file.parse(Ministral3Config)
    encoder = _describe(file, config)
    rotary = config.rope_scaling or config.rope_parameters
    unscaled = None if rotary is None else rotary.original_max_position_embeddings
    return (
        encoder if unscaled is None else replace(encoder, max_positions=min(encoder.max_positions, unscaled))
    )


def _describe(file: ModelFile, config: MistralConfig) -> Encoder:
    path = file.path
    # transformers ignores it for this model type; a model that has it was trained as something else.
    refuse(path, [("layer_types", config.layer_types, None)])
    size = config.sliding_window
    window = None if size is None else config.find_window(path, size)
    attention = decoder.describe_attention(path, config, qkv_bias=False, output_bias=False)
    return decoder.describe_encoder(
        path, config, [replace(attention, window=window)] * config.num_hidden_layers
    )
