"""The declarative description of an encoder: what a family file returns and what every engine interprets.

Parameter names are ours; `ParameterNames` says which checkpoint tensor fills each of them. Linear weights keep
the checkpoint's layout (out_features, in_features).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum


class MlpActivation(StrEnum):
    """Activation between the two products of the MLP."""

    GELU = "gelu"  # x * Phi(x), by erf: BERT's own form; the tanh approximation moves vectors by up to 5e-4
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    SILU = "silu"


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Sum of word, position and (optionally) token-type rows, then LayerNorm.

    positions: rows of the learned absolute position table, so also the longest sequence.
    token_types: rows of the token-type table; 0 when there is none.
    """

    vocabulary: int
    positions: int
    token_types: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Full bidirectional self-attention: scores scaled by 1/sqrt(head_size), biases on all four products."""

    heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class Mlp:
    """Two products with biases and an activation between them."""

    intermediate: int
    activation: MlpActivation


@dataclass(frozen=True, slots=True)
class Layer:
    """Post-norm transformer layer: x = LN(x + attention(x)); x = LN(x + mlp(x))."""

    attention: Attention
    mlp: Mlp


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """Where the parameters lie in a checkpoint.

    prefixes: put before every name, tried in order; the first under which the word embeddings exist is used.
    names: our parameter name, `{layer}` for the layer's number, to the checkpoint's names, tried in order.
    """

    prefixes: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor that the description needs.

    name: ours; pattern: the same with `{layer}` for the layer's number; shape as in the checkpoint.
    """

    name: str
    pattern: str
    layer: int | None
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder, described once; `engines` interpret it."""

    family: str
    hidden_size: int
    norm_eps: float
    embeddings: Embeddings
    layers: tuple[Layer, ...]
    parameter_names: ParameterNames

    def parameters(self) -> Iterator[Parameter]:
        """Every tensor that the description needs, with its shape."""
        hidden = self.hidden_size
        yield from _plain("embeddings.word.weight", (self.embeddings.vocabulary, hidden))
        yield from _plain("embeddings.position.weight", (self.embeddings.positions, hidden))
        if self.embeddings.token_types:
            yield from _plain("embeddings.token_type.weight", (self.embeddings.token_types, hidden))
        yield from _plain("embeddings.norm.weight", (hidden,))
        yield from _plain("embeddings.norm.bias", (hidden,))
        for number, layer in enumerate(self.layers):
            inner = layer.attention.heads * layer.attention.head_size
            shapes: list[tuple[str, tuple[int, ...]]] = []
            for projection in ("query", "key", "value"):
                shapes += _linear(f"attention.{projection}", inner, hidden)
            shapes += _linear("attention.output", hidden, inner)
            shapes += _norm("attention.norm", hidden)
            shapes += _linear("mlp.up", layer.mlp.intermediate, hidden)
            shapes += _linear("mlp.down", hidden, layer.mlp.intermediate)
            shapes += _norm("mlp.norm", hidden)
            for name, shape in shapes:
                yield Parameter(f"layers.{number}.{name}", f"layers.{{layer}}.{name}", number, shape)


def _plain(name: str, shape: tuple[int, ...]) -> Iterator[Parameter]:
    yield Parameter(name, name, None, shape)


def _linear(name: str, out_features: int, in_features: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{name}.weight", (out_features, in_features)), (f"{name}.bias", (out_features,))]


def _norm(name: str, size: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{name}.weight", (size,)), (f"{name}.bias", (size,))]
