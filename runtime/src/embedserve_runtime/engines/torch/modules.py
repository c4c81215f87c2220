"""An encoder as packed torch operations, assembled from its description: embeddings, layers, final norm.

Nothing here knows about batches of padded sequences; only the attention kernel sees where a sequence ends.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.attention import Kernels, SelfAttention, Turn
from embedserve_runtime.engines.torch.kernels import KernelKind
from embedserve_runtime.engines.torch.packing import PackedTokens
from embedserve_runtime.engines.torch.parameters import Normalization, Parameters
from embedserve_runtime.model.architecture import (
    Activation,
    Encoder,
    Layer,
    Mlp,
    Norm,
    NormPlacement,
)


class PackedEncoder:
    """Packed tokens to packed final hidden states."""

    def __init__(self, encoder: Encoder, parameters: Parameters, kind: KernelKind) -> None:
        kernels = Kernels(encoder, parameters, kind)
        self._embeddings = PackedEmbeddings(encoder, parameters)
        self._layers = [
            PackedLayer(layer, parameters, kernels, f"layers.{number}")
            for number, layer in enumerate(encoder.layers)
        ]
        self._final_norm = _optional_norm(parameters, encoder.final_norm, "final_norm")
        # Layers of one rotary form share its table, and a forward looks its positions up once.
        forms = [layer.attention.rotary for layer in encoder.layers]
        distinct = list(dict.fromkeys(form for form in forms if form is not None))
        self._turns = [Turn.table(form, encoder.max_tokens, parameters) for form in distinct]
        self._turn_of_layer = [None if form is None else distinct.index(form) for form in forms]

    def __call__(self, tokens: PackedTokens) -> Tensor:
        turns = [turn.at(tokens.positions) for turn in self._turns]
        hidden = self._embeddings(tokens)
        for layer, number in zip(self._layers, self._turn_of_layer, strict=True):
            hidden = layer(hidden, tokens, None if number is None else turns[number])
        return hidden if self._final_norm is None else self._final_norm(hidden)


class PackedEmbeddings:
    """Word, position and token-type rows, then the norm."""

    def __init__(self, encoder: Encoder, parameters: Parameters) -> None:
        description = encoder.embeddings
        self._words = parameters.tensor("embeddings.word.weight")
        self._scale = description.scale
        self._positions: Tensor | None = None
        self._first_position = 0
        if description.positions is not None:
            self._positions = parameters.tensor("embeddings.position.weight")
            self._first_position = description.positions.offset
        # Single texts are all of type 0.
        types = parameters.tensor("embeddings.token_type.weight") if description.token_types else None
        self._type_zero = None if types is None else types[0].clone()
        self._norm = _optional_norm(parameters, description.norm, "embeddings.norm")

    def __call__(self, tokens: PackedTokens) -> Tensor:
        hidden = functional.embedding(tokens.ids, self._words)
        if self._scale != 1.0:
            hidden = hidden * self._scale
        if self._type_zero is not None:
            hidden = hidden + self._type_zero
        if self._positions is not None:
            hidden = hidden + functional.embedding(tokens.positions + self._first_position, self._positions)
        return hidden if self._norm is None else self._norm(hidden)


class PackedLayer:
    """Attention and MLP around the residual, with the norms where the description places them."""

    def __init__(self, layer: Layer, parameters: Parameters, kernels: Kernels, name: str) -> None:
        attention = f"{name}.attention"
        self._placement = layer.placement
        self._attention = SelfAttention(
            layer.attention, parameters, kernels.of(layer.attention, attention), attention
        )
        self._mlp = PackedMlp(layer.mlp, parameters, f"{name}.mlp")
        before_attention = layer.norm if layer.attention_norm else None
        inner = layer.norm if layer.inner_norm else None
        after_branch = layer.norm if layer.placement is NormPlacement.SANDWICH else None
        inner = layer.norm if layer.inner_norm else None
        self._attention_inner_norm = _optional_norm(parameters, inner, f"{attention}.inner_norm")
        self._attention_norm = _optional_norm(parameters, before_attention, f"{attention}.norm")
        self._inner_norm = _optional_norm(parameters, inner, f"{attention}.inner_norm")
        self._attention_post_norm = _optional_norm(parameters, after_branch, f"{attention}.post_norm")
        self._mlp_norm = parameters.norm(layer.norm, f"{name}.mlp.norm")
        self._mlp_post_norm = _optional_norm(parameters, after_branch, f"{name}.mlp.post_norm")

    def __call__(self, hidden: Tensor, tokens: PackedTokens, turn: Turn | None) -> Tensor:
        if self._placement is NormPlacement.POST:
            branch = self._attention(hidden, tokens, turn)
            if self._attention_inner_norm is not None:
                branch = self._attention_inner_norm(hidden + branch)
            hidden = _normed(hidden + branch, self._attention_norm)
            return self._mlp_norm(hidden + self._mlp(hidden))
        branch = self._attention(_normed(hidden, self._attention_norm), tokens, turn)
        hidden = hidden + _normed(branch, self._attention_post_norm)
        return hidden + _normed(self._mlp(self._mlp_norm(hidden)), self._mlp_post_norm)


class PackedMlp:
    """down(activation(up(x))), or down(activation(gate(x)) * up(x)) with gate and up as one product."""

    def __init__(self, mlp: Mlp, parameters: Parameters, name: str) -> None:
        inner = [f"{name}.gate", f"{name}.up"] if mlp.gated else [f"{name}.up"]
        self._inner = parameters.linear(inner, mlp.up_bias)
        self._down = parameters.linear([f"{name}.down"], mlp.down_bias)
        self._gated = mlp.gated
        self._activation = ACTIVATIONS[mlp.activation]

    def __call__(self, value: Tensor) -> Tensor:
        inner = self._inner(value)
        if not self._gated:
            return self._down(self._activation(inner))
        gate, up = inner.chunk(2, dim=-1)
        return self._down(self._activation(gate) * up)


def _gelu_tanh(value: Tensor) -> Tensor:
    return functional.gelu(value, approximate="tanh")


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: _gelu_tanh,
    Activation.RELU: functional.relu,
    Activation.SILU: functional.silu,
}


def _optional_norm(parameters: Parameters, norm: Norm | None, name: str) -> Normalization | None:
    return None if norm is None else parameters.norm(norm, name)


def _normed(value: Tensor, norm: Normalization | None) -> Tensor:
    return value if norm is None else norm(value)
