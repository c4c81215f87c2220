"""BERT: learned absolute positions, post-norm layers, erf GELU.

Source: `BertModel` of transformers (`modeling_bert.py`). Old checkpoints call the LayerNorm parameters gamma and
beta; checkpoints of a model with a head carry the prefix `bert.`.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from embedserve_runtime.errors import UnsupportedArchitecture
from embedserve_runtime.model.architecture import (
    Attention,
    Embeddings,
    Encoder,
    Layer,
    Mlp,
    MlpActivation,
    ParameterNames,
)
from embedserve_runtime.model.files import FileModel, read_json

ACTIVATIONS = {
    "gelu": MlpActivation.GELU,
    "gelu_new": MlpActivation.GELU_TANH,
    "gelu_pytorch_tanh": MlpActivation.GELU_TANH,
    "relu": MlpActivation.RELU,
    "silu": MlpActivation.SILU,
    "swish": MlpActivation.SILU,
}


class BertConfig(FileModel):
    """The keys of config.json that decide the forward pass."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    position_embedding_type: str = "absolute"
    is_decoder: bool = False


def _linear(ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    return {f"{ours}.{part}": (f"{theirs}.{part}",) for part in ("weight", "bias")}


def _norm(ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    return {
        f"{ours}.weight": (f"{theirs}.weight", f"{theirs}.gamma"),
        f"{ours}.bias": (f"{theirs}.bias", f"{theirs}.beta"),
    }


_LAYER = "encoder.layer.{layer}"
NAMES = ParameterNames(
    prefixes=("", "bert.", "model."),
    names=MappingProxyType(
        {
            "embeddings.word.weight": ("embeddings.word_embeddings.weight",),
            "embeddings.position.weight": ("embeddings.position_embeddings.weight",),
            "embeddings.token_type.weight": ("embeddings.token_type_embeddings.weight",),
            **_norm("embeddings.norm", "embeddings.LayerNorm"),
            **_linear("layers.{layer}.attention.query", f"{_LAYER}.attention.self.query"),
            **_linear("layers.{layer}.attention.key", f"{_LAYER}.attention.self.key"),
            **_linear("layers.{layer}.attention.value", f"{_LAYER}.attention.self.value"),
            **_linear("layers.{layer}.attention.output", f"{_LAYER}.attention.output.dense"),
            **_norm("layers.{layer}.attention.norm", f"{_LAYER}.attention.output.LayerNorm"),
            **_linear("layers.{layer}.mlp.up", f"{_LAYER}.intermediate.dense"),
            **_linear("layers.{layer}.mlp.down", f"{_LAYER}.output.dense"),
            **_norm("layers.{layer}.mlp.norm", f"{_LAYER}.output.LayerNorm"),
        }
    ),
)


def describe(folder: Path) -> Encoder:
    """The encoder that `folder`/config.json describes. Raises ModelInvalid or UnsupportedArchitecture."""
    path = folder / "config.json"
    config = read_json(path, BertConfig)
    for field, unsupported in (
        ("position_embedding_type", config.position_embedding_type != "absolute"),
        ("is_decoder", config.is_decoder),
        ("hidden_act", config.hidden_act not in ACTIVATIONS),
        ("num_attention_heads", config.hidden_size % config.num_attention_heads != 0),
    ):
        if unsupported:
            raise UnsupportedArchitecture(
                f"{path}: {field} = {getattr(config, field)!r} is not supported for BERT"
            )
    layer = Layer(
        attention=Attention(
            heads=config.num_attention_heads, head_size=config.hidden_size // config.num_attention_heads
        ),
        mlp=Mlp(intermediate=config.intermediate_size, activation=ACTIVATIONS[config.hidden_act]),
    )
    return Encoder(
        family="bert",
        hidden_size=config.hidden_size,
        norm_eps=config.layer_norm_eps,
        embeddings=Embeddings(
            vocabulary=config.vocab_size,
            positions=config.max_position_embeddings,
            token_types=config.type_vocab_size,
        ),
        layers=(layer,) * config.num_hidden_layers,
        parameter_names=NAMES,
    )
