"""Llama, EuroBERT, and llama_bidirec (NVIDIA's bidirectional retrieval models): the common decoder, optional biases.

Source: `LlamaModel` and `EuroBertModel` of transformers; the latter, and the class of llama_bidirec, are the former
with full attention.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveInt

from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.families import decoder
from embedserve_runtime.model.files import ModelFile

BIDIRECTIONAL = ("llama_bidirec", "eurobert")


class LlamaConfig(decoder.DecoderConfig):
    """The keys of config.json that decide the forward pass."""

    num_key_value_heads: PositiveInt | None = None
    attention_bias: bool = False
    mlp_bias: bool = False


def describe(file: ModelFile) -> Encoder:
    """Describe the encoder of `file`, a config.json. Raises ModelInvalid or UnsupportedArchitecture."""
    return describe_config(file.path, file.parse(LlamaConfig))


def describe_config(path: Path, config: LlamaConfig) -> Encoder:
    """Describe the encoder of a config.json that has been parsed."""
    if config.model_type in BIDIRECTIONAL:
        config = config.model_copy(update={"is_causal": False})
    attention = decoder.describe_attention(
        path, config, qkv_bias=config.attention_bias, output_bias=config.attention_bias
    )
    return decoder.describe_encoder(
        path, config, [attention] * config.num_hidden_layers, mlp_bias=config.mlp_bias
    )
