"""An encoder as packed torch operations, assembled from its description: embeddings, layers, final norm.

Nothing here knows about batches of padded sequences; only the attention kernel sees where a sequence ends.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.attention import AttentionKernels, RotaryTable, SelfAttention
from embedserve_runtime.engines.torch.feed_forward import PackedConvolution, build_mlp
from embedserve_runtime.engines.torch.kernels import KernelKind
from embedserve_runtime.engines.torch.packing import PackedTokens
from embedserve_runtime.engines.torch.parameters import Normalization, Parameters
from embedserve_runtime.engines.torch.tables import EmbeddingTables, LayerNorms
from embedserve_runtime.model.architecture import Encoder, Layer, NormPlacement


class PackedEncoder:
    """Packed tokens to packed final hidden states."""

    def __init__(self, encoder: Encoder, parameters: Parameters, kind: KernelKind) -> None:
        kernels = AttentionKernels(encoder, parameters, kind)
        self._embeddings = PackedEmbeddings(encoder, parameters)
        self._layers = [
            PackedLayer(layer, parameters, kernels, f"layers.{number}")
            for number, layer in enumerate(encoder.layers)
        ]
        self._final_norm = parameters.load_optional_norm(encoder.final_norm, "final_norm")
        # Layers of one rotary form share its table, and a forward looks its positions up once.
        forms = [layer.attention.rotary for layer in encoder.layers]
        distinct = list(dict.fromkeys(form for form in forms if form is not None))
        self._rotary_tables = [RotaryTable.build(form, encoder.max_tokens, parameters) for form in distinct]
        self._turn_of_layer = [None if form is None else distinct.index(form) for form in forms]

    def __call__(self, tokens: PackedTokens) -> Tensor:
        rotary_tables = [rotary.select(tokens.positions) for rotary in self._rotary_tables]
        hidden = self._embeddings(tokens)
        for layer, number in zip(self._layers, self._turn_of_layer, strict=True):
            hidden = layer(hidden, tokens, None if number is None else rotary_tables[number])
        return _normalize(hidden, self._final_norm)


class PackedEmbeddings:
    """Word, position and token-type rows, then projection and norm."""

    def __init__(self, encoder: Encoder, parameters: Parameters) -> None:
        self._tables = EmbeddingTables.load(encoder, parameters)

    def __call__(self, tokens: PackedTokens) -> Tensor:
        tables = self._tables
        hidden = functional.embedding(tokens.ids, tables.words)
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
    """Attention and MLP around the residual, with the norms where the description places them."""

    def __init__(self, layer: Layer, parameters: Parameters, kernels: AttentionKernels, name: str) -> None:
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

    def __call__(self, hidden: Tensor, tokens: PackedTokens, rotary: RotaryTable | None) -> Tensor:
        norms = self._norms
        if self._placement is NormPlacement.POST:
            branch = self._attention(hidden, tokens, rotary)
            if norms.attention_inner is not None:
                branch = norms.attention_inner(hidden + branch)
            attended = _normalize(hidden + branch, norms.attention)
            output = norms.mlp(attended + self._mlp(attended))
            if self._convolution is None:
                return output
            return _normalize(output + self._convolution(hidden, tokens), self._convolution_norm)
        branch = self._attention(_normalize(hidden, norms.attention), tokens, rotary)
        hidden = hidden + _normalize(branch, norms.attention_post)
        return hidden + _normalize(self._mlp(norms.mlp(hidden)), norms.mlp_post)


def _normalize(value: Tensor, norm: Normalization | None) -> Tensor:
    return value if norm is None else norm(value)
