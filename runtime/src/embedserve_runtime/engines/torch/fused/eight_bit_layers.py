"""Layers whose products run in 8 bit. All else is as in 16 bit.

Norms give 8 bit alone: where they come after the branches, the kernel that adds to the residual computes its norm
again. Where the device has e4m3 and a norm limits the values, attention writes e4m3 (`quantizing`); elsewhere its
output product is in 16 bit. Rows behind a norm are smoothed where texts have shown their ranges (`smoothing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from embedserve_runtime.engines.torch.activation_ranges import LayerRanges, observe_ranges
from embedserve_runtime.engines.torch.device_batch import DeviceBatch, copy_to_device
from embedserve_runtime.engines.torch.fused.deferred_norm import DeferredLayerNorm
from embedserve_runtime.engines.torch.fused.eight_bit import EightBitProduct, ProductEpilogue
from embedserve_runtime.engines.torch.fused.eight_bit_rows import QuantizedRows, normalize_to_eight_bit
from embedserve_runtime.engines.torch.fused.layer import FusedLayer, HiddenStates, LayerStack
from embedserve_runtime.engines.torch.fused.operations import add_and_normalize, embed_batch
from embedserve_runtime.engines.torch.fused.quantizing import DTYPES, FoldedValues
from embedserve_runtime.engines.torch.fused.self_attention import FusedSelfAttention, SharedTables
from embedserve_runtime.engines.torch.fused.smoothing import SmoothedNorm, smooth
from embedserve_runtime.engines.torch.fused.support import FIRST_OF_EIGHT_BIT, EightBit
from embedserve_runtime.engines.torch.fused.weights import LayerWeights
from embedserve_runtime.engines.torch.parameters import Linear, Normalization
from embedserve_runtime.engines.torch.tables import EmbeddingTables, LayerNorms
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import Encoder, Layer, NormPlacement

# Of the batch that shows the means of values: a length that attention usually sees.
SAMPLE_LENGTH, SAMPLE_TOKENS = 128, 1024

Hidden8 = HiddenStates[QuantizedRows, Tensor | DeferredLayerNorm]
Layer8 = FusedLayer[Hidden8, QuantizedRows, Tensor, Hidden8]
LastLayer8 = FusedLayer[Hidden8, QuantizedRows, Tensor, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class EightBitProducts:
    """Products in 8 bit; that of attention's result is in 16 bit where attention does not write e4m3.

    inner_kind: of what the down product reads. adds_residual: 8-bit products that end a branch add the residual.
    """

    qkv_proj: EightBitProduct
    of_attended: Linear | EightBitProduct
    up: EightBitProduct
    of_inner: EightBitProduct
    inner_kind: EightBit
    adds_residual: bool

    def project_qkv(self, hidden: Hidden8) -> Tensor:
        return self.qkv_proj(hidden.rows)

    def project_output(self, attended: Tensor, hidden: Hidden8) -> Tensor:
        if self.adds_residual and isinstance(self.of_attended, EightBitProduct):
            return self.of_attended.add_to(attended, hidden.residual)
        return self.of_attended(attended)

    def project_inner(self, hidden: Hidden8) -> QuantizedRows:
        return self.up.narrow(hidden.rows, self.inner_kind)

    def project_down(self, inner: QuantizedRows, hidden: Hidden8) -> Tensor:
        return self.of_inner.add_to(inner, hidden.residual) if self.adds_residual else self.of_inner(inner)


@dataclass(frozen=True, slots=True, eq=False)
class EightBitPostNorms:
    """Norms after the branches, in 8 bit and deferred. mlp: read by the next layer, which it is smoothed for; None in
    the last one. output_adds: the output product has added the residual."""

    attention: SmoothedNorm
    mlp: SmoothedNorm | None
    kind: EightBit
    output_adds: bool

    def normalize_after_attention(self, branch: Tensor, hidden: Hidden8) -> Hidden8:
        residual = None if self.output_adds else hidden.residual
        return HiddenStates(*normalize_to_eight_bit(branch, self.attention, self.kind, residual=residual))

    def normalize_after_mlp(self, branch: Tensor, _: Hidden8) -> Hidden8:
        assert self.mlp is not None  # the last layer has `LastPostNorms`
        return HiddenStates(*normalize_to_eight_bit(branch, self.mlp, self.kind))


@dataclass(frozen=True, slots=True, eq=False)
class LastPostNorms:
    """Norms of the last layer, whose result is in 16 bit."""

    norms: EightBitPostNorms
    mlp: Normalization

    def normalize_after_attention(self, branch: Tensor, hidden: Hidden8) -> Hidden8:
        return self.norms.normalize_after_attention(branch, hidden)

    def normalize_after_mlp(self, branch: Tensor, _: Hidden8) -> Tensor:
        return add_and_normalize(branch, self.mlp)


@dataclass(frozen=True, slots=True, eq=False)
class EightBitPreNorms:
    """Norms before the branches, in 8 bit; the residual is float32. following: the norm that the next layer begins
    with."""

    mlp: SmoothedNorm
    following: SmoothedNorm
    kind: EightBit

    def normalize_after_attention(self, branch: Tensor, hidden: Hidden8) -> Hidden8:
        return add_and_norm(branch, hidden, self.mlp, self.kind)

    def normalize_after_mlp(self, branch: Tensor, hidden: Hidden8) -> Hidden8:
        return add_and_norm(branch, hidden, self.following, self.kind)


@dataclass(frozen=True, slots=True, eq=False)
class LastPreNorms:
    """Norms of the last layer, whose result is the residual."""

    mlp: SmoothedNorm
    kind: EightBit

    def normalize_after_attention(self, branch: Tensor, hidden: Hidden8) -> Hidden8:
        return add_and_norm(branch, hidden, self.mlp, self.kind)

    def normalize_after_mlp(self, branch: Tensor, hidden: Hidden8) -> Tensor:
        residual = hidden.residual
        assert isinstance(residual, Tensor)  # no norm is deferred
        return add_and_normalize(branch, None, residual=residual, keep=residual)


def add_and_norm(branch: Tensor, hidden: Hidden8, norm: SmoothedNorm, kind: EightBit) -> Hidden8:
    """Add the branch to the residual, in place; the rows are the norm of that."""
    residual = hidden.residual
    assert isinstance(residual, Tensor)  # no norm is deferred
    rows, _ = normalize_to_eight_bit(branch, norm, kind, residual=residual, keep=residual)
    return HiddenStates(rows, residual)


@dataclass(frozen=True, slots=True, eq=False)
class ValueCentering:
    """Takes the mean of the values out of what attention writes as e4m3; the output product adds it back."""

    folded: FoldedValues
    qkv_proj: EightBitProduct
    output: EightBitProduct

    def calibrate(self, attended: Tensor) -> None:
        """Shift the biases of both products. attended: results of attention for some text."""
        of_qkv, of_output = self.folded.compute_shifts(attended)
        self.qkv_proj.shift(of_qkv)
        self.output.shift(of_output)


@dataclass(frozen=True, slots=True, eq=False)
class LayerInput:
    """What is known of the rows that a layer is given.

    norm: whose result they are, if any; deferred where norms come after. ranges: of what its products read, None where
    no texts have shown them.
    """

    norm: Normalization | None
    ranges: LayerRanges | None


@dataclass(frozen=True, slots=True, eq=False)
class LayerParts8:
    """A layer but for what its norms give, which depends on the layer that follows it.

    before_attention, before_mlp: the norms whose rows its products read, None where there is none.
    """

    norms: LayerNorms
    before_attention: SmoothedNorm | None
    before_mlp: SmoothedNorm
    products: EightBitProducts
    attention: FusedSelfAttention
    centering: ValueCentering | None

    @classmethod
    def load(
        cls,
        layer: Layer,
        shared: SharedTables,
        name: str,
        kind: EightBit,
        given: LayerInput,
    ) -> LayerParts8:
        parameters = shared.parameters
        weights, dtype = LayerWeights.load(layer, parameters, name), parameters.dtype
        norms, mlp, after = weights.norms, weights.mlp, layer.placement is NormPlacement.POST
        inner = choose_inner_kind(kind, parameters.device)
        folded, qkv_proj = None, weights.qkv_proj
        output: Linear | EightBitProduct = weights.output
        # Of what queries, keys and values are made of: it limits the values.
        norm = given.norm if after else norms.attention or given.norm
        before_attention = None
        if norm is not None:
            # Embeddings that a layer reads without a norm of its own are the residual too, and stay as they are.
            is_residual = not after and norms.attention is None
            peaks = None if given.ranges is None or is_residual else given.ranges.attention
            before_attention, qkv_proj = smooth(norm, qkv_proj, peaks)
        between = norms.attention if after else norms.mlp
        assert between is not None  # `find_eight_bit_obstacle` names the others
        before_mlp, up = smooth(between, weights.up, None if given.ranges is None else given.ranges.mlp)
        if before_attention is not None and inner is EightBit.FP8:
            folded = FoldedValues.fold(qkv_proj, weights.output, layer.attention, before_attention.rows, kind)
            qkv_proj = folded.qkv_proj
            epilogue = ProductEpilogue(residual_norm=given.norm if after else None)
            output = EightBitProduct(folded.output, dtype, kind=inner, epilogue=epilogue)
        activated = ProductEpilogue(mlp.activation, mlp.gated)
        added = ProductEpilogue(residual_norm=norms.attention if after else None)
        products = EightBitProducts(
            qkv_proj=EightBitProduct(qkv_proj, dtype, kind=kind),
            of_attended=output,
            up=EightBitProduct(up, dtype, kind=kind, epilogue=activated),
            of_inner=EightBitProduct(weights.down, dtype, kind=inner, epilogue=added),
            inner_kind=inner,
            adds_residual=after,
        )
        centering = None
        if folded is not None and isinstance(output, EightBitProduct):
            centering = ValueCentering(folded, products.qkv_proj, output)
        attention = FusedSelfAttention(
            layer.attention,
            shared,
            f"{name}.attention",
            dtype=None if centering is None else DTYPES[inner],
        )
        return cls(norms, before_attention, before_mlp, products, attention, centering)

    def build_post_norms(self, kind: EightBit, following: LayerParts8 | None) -> EightBitPostNorms:
        output_adds = isinstance(self.products.of_attended, EightBitProduct)
        mlp = None if following is None else following.before_attention
        return EightBitPostNorms(self.before_mlp, mlp, kind, output_adds)


def choose_inner_kind(kind: EightBit, device: torch.device) -> EightBit:
    """Return the kind of the products whose input the kernel before writes: e4m3 where the device has it, which needs
    no pass of its own."""
    has_e4m3 = torch.cuda.get_device_capability(device) >= FIRST_OF_EIGHT_BIT[EightBit.FP8]
    return EightBit.FP8 if has_e4m3 else kind


@dataclass(frozen=True, slots=True, eq=False)
class PostNormEmbeddings:
    """Embeddings whose norm, if they have one, is deferred."""

    tables: EmbeddingTables
    norm: SmoothedNorm | None
    kind: EightBit

    def __call__(self, batch: DeviceBatch) -> Hidden8:
        sums = embed_batch(self.tables, batch, self.tables.word_embeddings.dtype)
        if self.norm is None:
            return HiddenStates(QuantizedRows.quantize(sums, self.kind), sums)
        return HiddenStates(*normalize_to_eight_bit(sums, self.norm, self.kind))


@dataclass(frozen=True, slots=True, eq=False)
class PreNormEmbeddings:
    """Embeddings in float32, and what the norm of the first layer makes of them."""

    tables: EmbeddingTables
    norm: SmoothedNorm | None
    kind: EightBit

    def __call__(self, batch: DeviceBatch) -> Hidden8:
        hidden, norm = embed_batch(self.tables, batch, torch.float32), self.norm
        rows = (
            hidden
            if norm is None
            else add_and_normalize(hidden, norm.rows, dtype=self.tables.word_embeddings.dtype)
        )
        return HiddenStates(QuantizedRows.quantize(rows, self.kind), hidden)


@dataclass(frozen=True, slots=True, eq=False)
class LastLayerEnd:
    """The last layer and the final norm. dtype: of the result."""

    layer: LastLayer8
    final_norm: Normalization | None
    dtype: torch.dtype

    def __call__(self, hidden: Hidden8, batch: DeviceBatch) -> Tensor:
        last = self.layer(hidden, batch)
        return (
            last.to(self.dtype)
            if self.final_norm is None
            else add_and_normalize(last, self.final_norm, dtype=self.dtype)
        )


def build_eight_bit_stack(
    encoder: Encoder,
    shared: SharedTables,
    tables: EmbeddingTables,
    kind: EightBit,
    texts: PackedBatch | None,
) -> LayerStack[Hidden8]:
    """Build the layers. texts: show the ranges of activations and the means of values; without them nothing is
    smoothed, and the means are those of random tokens."""
    parameters = shared.parameters
    ranges: Sequence[LayerRanges | None] = [None] * len(encoder.layers)
    if texts is not None:
        ranges = observe_ranges(encoder, parameters, texts)
    after = all(layer.placement is NormPlacement.POST for layer in encoder.layers)
    loaded: list[LayerParts8] = []
    before = tables.norm
    for number, (layer, of_layer) in enumerate(zip(encoder.layers, ranges, strict=True)):
        given = LayerInput(before, of_layer)
        loaded.append(LayerParts8.load(layer, shared, f"layers.{number}", kind, given))
        before = loaded[-1].norms.mlp if after else None
    build = build_post_norm_layers if after else build_pre_norm_layers
    embed, layers, last = build(tables, loaded, kind)
    batch = copy_to_device(sample_tokens(encoder) if texts is None else texts, parameters.device)
    calibrate(embed, [*layers, last], [one.centering for one in loaded], batch)
    final_norm = parameters.load_optional_norm(encoder.final_norm, "final_norm")
    return LayerStack(embed, layers, LastLayerEnd(last, final_norm, tables.word_embeddings.dtype))


Embed8 = Callable[[DeviceBatch], Hidden8]


def build_post_norm_layers(
    tables: EmbeddingTables, loaded: Sequence[LayerParts8], kind: EightBit
) -> tuple[Embed8, list[Layer8], LastLayer8]:
    last = loaded[-1]
    return (
        PostNormEmbeddings(replace(tables, norm=None), loaded[0].before_attention, kind),
        [
            FusedLayer(one.products, one.attention, one.build_post_norms(kind, following))
            for one, following in pairwise(loaded)
        ],
        FusedLayer(
            last.products,
            last.attention,
            LastPostNorms(last.build_post_norms(kind, None), last.norms.mlp),
        ),
    )


def build_pre_norm_layers(
    tables: EmbeddingTables, loaded: Sequence[LayerParts8], kind: EightBit
) -> tuple[Embed8, list[Layer8], LastLayer8]:
    """Build the layers, each of which ends with the norm that the next one begins with."""
    first, last = loaded[0], loaded[-1]
    layers: list[Layer8] = []
    for one, following in pairwise(loaded):
        norm = following.before_attention
        assert norm is not None  # `find_eight_bit_obstacle` names the others
        layers.append(FusedLayer(one.products, one.attention, EightBitPreNorms(one.before_mlp, norm, kind)))
    return (
        PreNormEmbeddings(tables, None if first.norms.attention is None else first.before_attention, kind),
        layers,
        FusedLayer(last.products, last.attention, LastPreNorms(last.before_mlp, kind)),
    )


def calibrate(
    embed: Embed8,
    layers: Sequence[Layer8 | LastLayer8],
    centerings: Sequence[ValueCentering | None],
    batch: DeviceBatch,
) -> None:
    """Take the means of the values of a batch out of every layer, one after another: each sees what the layers before
    it, which have none any more, give it."""
    hidden: Hidden8 | Tensor = embed(batch)
    for layer, centering in zip(layers, centerings, strict=True):
        assert isinstance(hidden, HiddenStates)  # only the last layer gives a tensor
        if centering is not None:
            centering.calibrate(layer.attend(hidden, batch))
        hidden = layer(hidden, batch)


def sample_tokens(encoder: Encoder) -> PackedBatch:
    """Make a batch of random tokens."""
    length = min(SAMPLE_LENGTH, encoder.max_tokens)
    shape = SAMPLE_TOKENS // length, length
    ids = np.random.default_rng(0).integers(0, encoder.embeddings.vocabulary, shape, np.int32)
    return PackedBatch.pack([*ids])
