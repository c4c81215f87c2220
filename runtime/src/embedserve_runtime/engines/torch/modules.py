"""An encoder as packed torch operations, assembled from its description: embeddings, layers, final norm.

Nothing here knows about batches of padded sequences; only the attention kernel sees where a sequence ends.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.attention import Kernels, SelfAttention, Turn
from embedserve_runtime.engines.torch.kernels import KernelKind
from embedserve_runtime.engines.torch.mixing import PackedConvolution, packed_mlp
from embedserve_runtime.engines.torch.packing import PackedTokens
from embedserve_runtime.engines.torch.parameters import Linear, Normalization, Parameters
from embedserve_runtime.model.architecture import Encoder, Layer, Norm, NormPlacement


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
    """Word, position and token-type rows, then projection and norm."""

    def __init__(self, encoder: Encoder, parameters: Parameters) -> None:
        description = encoder.embeddings
        self._words = parameters.tensor("embeddings.word.weight")
        self._scale = description.scale
        self._positions: Tensor | None = None
        self._first_position = 0
        if description.positions is not None:
            self._positions = parameters.tensor("embeddings.position.weight")
            self._first_position = description.positions.offset
        self._types: Tensor | None = None
        if description.token_types:
            self._types = parameters.tensor("embeddings.token_type.weight")
        self._projection: Linear | None = None
        if description.width not in (None, encoder.hidden_size):
            self._projection = parameters.linear(["embeddings.projection"], bias=False)
        self._norm = _optional_norm(parameters, description.norm, "embeddings.norm")

    def __call__(self, tokens: PackedTokens) -> Tensor:
        hidden = functional.embedding(tokens.ids, self._words)
        if self._scale != 1.0:
            hidden = hidden * self._scale
        if self._types is not None:
            # Single texts are all of type 0.
            hidden = hidden + (
                self._types[0] if tokens.types is None else functional.embedding(tokens.types, self._types)
            )
        if self._positions is not None:
            hidden = hidden + functional.embedding(tokens.positions + self._first_position, self._positions)
        if self._projection is not None:
            hidden = self._projection(hidden)
        return hidden if self._norm is None else self._norm(hidden)


class PackedLayer:
    """Attention and MLP around the residual, with the norms where the description places them."""

    def __init__(self, layer: Layer, parameters: Parameters, kernels: Kernels, name: str) -> None:
        attention = f"{name}.attention"
        self._placement = layer.placement
        self._attention = SelfAttention(
            layer.attention, parameters, kernels.of(layer.attention, attention), attention
        )
        self._mlp = packed_mlp(layer.mlp, parameters, f"{name}.mlp")
        before_attention = layer.norm if layer.attention_norm else None
        inner = layer.norm if layer.inner_norm else None
        after_branch = layer.norm if layer.placement is NormPlacement.SANDWICH else None
        self._attention_inner_norm = _optional_norm(parameters, inner, f"{attention}.inner_norm")
        self._attention_norm = _optional_norm(parameters, before_attention, f"{attention}.norm")
        self._attention_post_norm = _optional_norm(parameters, after_branch, f"{attention}.post_norm")
        self._mlp_norm = parameters.norm(layer.norm, f"{name}.mlp.norm")
        self._mlp_post_norm = _optional_norm(parameters, after_branch, f"{name}.mlp.post_norm")
        self._convolution: PackedConvolution | None = None
        if layer.convolution is not None:
            self._convolution = PackedConvolution(layer.convolution, parameters, f"{name}.convolution")
        after_convolution = None if layer.convolution is None else layer.norm
        self._convolution_norm = _optional_norm(parameters, after_convolution, f"{name}.convolution.norm")

    def __call__(self, hidden: Tensor, tokens: PackedTokens, turn: Turn | None) -> Tensor:
        if self._placement is NormPlacement.POST:
            branch = self._attention(hidden, tokens, turn)
            if self._attention_inner_norm is not None:
                branch = self._attention_inner_norm(hidden + branch)
            attended = _normed(hidden + branch, self._attention_norm)
            output = self._mlp_norm(attended + self._mlp(attended))
            if self._convolution is None:
                return output
            return _normed(output + self._convolution(hidden, tokens), self._convolution_norm)
        branch = self._attention(_normed(hidden, self._attention_norm), tokens, turn)
        hidden = hidden + _normed(branch, self._attention_post_norm)
        return hidden + _normed(self._mlp(self._mlp_norm(hidden)), self._mlp_post_norm)


def _optional_norm(parameters: Parameters, norm: Norm | None, name: str) -> Normalization | None:
    return None if norm is None else parameters.norm(norm, name)


def _normed(value: Tensor, norm: Normalization | None) -> Tensor:
    return value if norm is None else norm(value)
