"""An encoder as packed torch operations, assembled from its description: embeddings, layers, final norm.

Nothing here knows about batches of padded sequences; only the attention kernel sees where a sequence ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.attention import AttentionKernels, RotaryTable, SelfAttention
from embedserve_runtime.engines.torch.feed_forward import PackedConvolution, build_mlp
from embedserve_runtime.engines.torch.kernels import KernelKind
from embedserve_runtime.engines.torch.layer_inputs import PackedLayerInput, PackedLayerInputs
from embedserve_runtime.engines.torch.packing import PackedTokens
from embedserve_runtime.engines.torch.parameters import Normalization, Parameters
from embedserve_runtime.engines.torch.tables import EmbeddingTables, LayerNorms
from embedserve_runtime.model.architecture import Encoder, Layer, LayerInputs, NormPlacement


class ActivationObserver(Protocol):
    """Is shown what the products of a layer read, (tokens, hidden)."""

    def observe_attention_input(self, rows: Tensor) -> None: ...

    def observe_mlp_input(self, rows: Tensor) -> None: ...


class PackedEncoder:
    """Packed tokens to packed final hidden states.

    streamed: each forward pass reads the layers from the checkpoint, one at a time, and keeps none: for a pass or two
    of a model that has no room on the device.
    """

    def __init__(
        self, encoder: Encoder, parameters: Parameters, kind: KernelKind, *, streamed: bool = False
    ) -> None:
        layers = _StreamedLayers(encoder, parameters, kind)
        self._embeddings = PackedEmbeddings(encoder, parameters)
        self._layers: Iterable[PackedLayer] = layers if streamed else [*layers]
        inputs = encoder.layer_inputs
        self._inputs = None if inputs is None else PackedLayerInputs(inputs, parameters)
        self._final_norm = parameters.load_optional_norm(encoder.final_norm, "final_norm")
        self._output = None if encoder.output is None else parameters.load_linear(["output"], bias=False)
        # Layers of one rotary form share its table, and a forward looks its positions up once.
        forms = [layer.attention.rotary for layer in encoder.layers]
        distinct = list(dict.fromkeys(form for form in forms if form is not None))
        self._rotary_tables = [
            RotaryTable.build(form, encoder.max_positions, parameters) for form in distinct
        ]
        self._turn_of_layer = [None if form is None else distinct.index(form) for form in forms]

    def __call__(self, tokens: PackedTokens) -> Tensor:
        return self.run(tokens, [None] * len(self._turn_of_layer))

    def run(self, tokens: PackedTokens, observers: Iterable[ActivationObserver | None]) -> Tensor:
        """Return the final hidden states, as a call does. observers: one for each layer, or None."""
        rotary_tables = [rotary.select(tokens.positions) for rotary in self._rotary_tables]
        rotary_of_layer = [
            None if number is None else rotary_tables[number] for number in self._turn_of_layer
        ]
        hidden = self._embeddings(tokens)
        layer_inputs = [None] * len(rotary_of_layer) if self._inputs is None else self._inputs(hidden)
        for layer, rotary, observer, layer_input in zip(
            self._layers, rotary_of_layer, observers, layer_inputs, strict=True
        ):
            hidden = layer(hidden, tokens, rotary, observer)
            if layer.input is not None and layer_input is not None:
                hidden = layer.input(hidden, layer_input)
        normed = _normalize(hidden, self._final_norm)
        return normed if self._output is None else self._output(normed)


class _StreamedLayers:
    """The layers of an encoder, each of which is read when it is its turn."""

    def __init__(self, encoder: Encoder, parameters: Parameters, kind: KernelKind) -> None:
        self._encoder = encoder
        self._parameters = parameters
        self._kernels = AttentionKernels(encoder, parameters, kind)

    def __iter__(self) -> Iterator[PackedLayer]:
        for number, layer in enumerate(self._encoder.layers):
            yield PackedLayer(
                layer, self._parameters, self._kernels, f"layers.{number}", self._encoder.layer_inputs
            )


class PackedEmbeddings:
    """Adds word, position and token-type embeddings, then applies projection and norm."""

    def __init__(self, encoder: Encoder, parameters: Parameters) -> None:
        self._tables = EmbeddingTables.load(encoder, parameters)

    def __call__(self, tokens: PackedTokens) -> Tensor:
        tables = self._tables
        hidden = functional.embedding(tokens.ids, tables.word_embeddings)
        if tables.scale != 1.0:
            hidden = hidden * tables.scale
        if tables.types is not None:
            # Single texts are all of type 0.
            hidden = hidden + (
                tables.types[0] if tokens.types is None else functional.embedding(tokens.types, tables.types)
            )
        if tables.positions is not None:
            hidden = hidden + functional.embedding(tokens.positions + tables.first_position, tables.positions)
        if tables.projection is None:
            return _normalize(hidden, tables.norm)
        if tables.norm_first:
            return tables.projection(_normalize(hidden, tables.norm))
        return _normalize(tables.projection(hidden), tables.norm)


class PackedLayer:
    """Attention and MLP around the residual, with the norms where the description places them.

    input: what is added behind them, where layers have inputs of their own.
    """

    def __init__(
        self,
        layer: Layer,
        parameters: Parameters,
        kernels: AttentionKernels,
        name: str,
        inputs: LayerInputs | None,
    ) -> None:
        self.input = None if inputs is None else PackedLayerInput(inputs, parameters, f"{name}.layer_input")
        attention = f"{name}.attention"
        self._placement = layer.placement
        self._attention = SelfAttention(
            layer.attention, parameters, kernels.get_kernel(layer.attention, attention), attention
        )
        self._mlp = build_mlp(layer.mlp, parameters, f"{name}.mlp")
        self._norms = LayerNorms.load(layer, parameters, name)
        self._convolution: PackedConvolution | None = None
        if layer.convolution is not None:
            self._convolution = PackedConvolution(layer.convolution, parameters, f"{name}.convolution")
        after_convolution = None if layer.convolution is None else layer.norm
        self._convolution_norm = parameters.load_optional_norm(after_convolution, f"{name}.convolution.norm")

    def __call__(
        self,
        hidden: Tensor,
        tokens: PackedTokens,
        rotary: RotaryTable | None,
        observer: ActivationObserver | None = None,
    ) -> Tensor:
        norms = self._norms
        rows = hidden if self._placement is NormPlacement.POST else _normalize(hidden, norms.attention)
        if observer is not None:
            observer.observe_attention_input(rows)
        branch = self._attention(rows, tokens, rotary)
        if self._placement is NormPlacement.POST:
            if norms.attention_inner is not None:
                branch = norms.attention_inner(hidden + branch)
            attended = _normalize(hidden + branch, norms.attention)
            if observer is not None:
                observer.observe_mlp_input(attended)
            output = norms.mlp(attended + self._mlp(attended))
            if self._convolution is None:
                return output
            return _normalize(output + self._convolution(hidden, tokens), self._convolution_norm)
        hidden = hidden + _normalize(branch, norms.attention_post)
        rows = norms.mlp(hidden)
        if observer is not None:
            observer.observe_mlp_input(rows)
        return hidden + _normalize(self._mlp(rows), norms.mlp_post)


def _normalize(value: Tensor, norm: Normalization | None) -> Tensor:
    return value if norm is None else norm(value)
