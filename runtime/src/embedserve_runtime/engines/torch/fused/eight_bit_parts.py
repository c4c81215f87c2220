"""Loads the parts of a layer in 8 bit: smooths its norms, folds its values, quantizes its weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embedserve_runtime.engines.torch.activation_ranges import LayerRanges
from embedserve_runtime.engines.torch.fused.eight_bit import EightBitProduct, ProductEpilogue
from embedserve_runtime.engines.torch.fused.eight_bit_layers import EightBitPostNorms, EightBitProducts
from embedserve_runtime.engines.torch.fused.quantizing import DTYPES, FoldedValues
from embedserve_runtime.engines.torch.fused.self_attention import FusedSelfAttention, SharedTables
from embedserve_runtime.engines.torch.fused.smoothing import SmoothedNorm, smooth
from embedserve_runtime.engines.torch.fused.support import FIRST_OF_EIGHT_BIT, EightBit
from embedserve_runtime.engines.torch.fused.weights import LayerWeights
from embedserve_runtime.engines.torch.parameters import Linear, Normalization
from embedserve_runtime.engines.torch.tables import LayerNorms
from embedserve_runtime.model.architecture import Layer, NormPlacement


@dataclass(frozen=True, slots=True, eq=False)
class ValueCentering:
    """Takes the mean of the values out of what attention writes as e4m3; the output product adds it back."""

    folded: FoldedValues
    qkv_proj: EightBitProduct
    output: EightBitProduct

    def calibrate(self, attended: Tensor) -> None:
        """Shift the biases of both products. attended: results of attention for some text."""
        qkv_shift, output_shift = self.folded.compute_shifts(attended)
        self.qkv_proj.shift(qkv_shift)
        self.output.shift(output_shift)


@dataclass(frozen=True, slots=True, eq=False)
class LayerInput:
    """The norm and the ranges of the rows that a layer reads.

    norm: whose result the rows are, if any; deferred where norms come after. ranges: of what the layer's products read,
    None where no texts have shown them.
    """

    norm: Normalization | None
    ranges: LayerRanges | None


@dataclass(frozen=True, slots=True, eq=False)
class LayerParts8:
    """The parts of a layer but for its last norm, which depends on the layer that follows it.

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
        cls, layer: Layer, shared: SharedTables, name: str, kind: EightBit, layer_input: LayerInput
    ) -> LayerParts8:
        """Load a layer that `find_eight_bit_obstacle` has nothing against. name: of the layer in the checkpoint."""
        loader = _PartsLoader(
            layer, LayerWeights.load(layer, shared.parameters, name), shared, kind, layer_input
        )
        before_attention, qkv_proj = loader.smooth_qkv()
        before_mlp, up = loader.smooth_up()
        folded = None if before_attention is None else loader.fold_values(qkv_proj, before_attention)
        if folded is not None:
            qkv_proj = folded.qkv_proj
        products = loader.build_products(qkv_proj, up, folded)
        centering = None
        if folded is not None and isinstance(products.output, EightBitProduct):
            centering = ValueCentering(folded, products.qkv_proj, products.output)
        dtype = None if centering is None else DTYPES[loader.inner_kind]
        attention = FusedSelfAttention(layer.attention, shared, f"{name}.attention", dtype=dtype)
        return cls(loader.weights.norms, before_attention, before_mlp, products, attention, centering)

    def build_post_norms(self, kind: EightBit, following: LayerParts8 | None) -> EightBitPostNorms:
        """Build the norms of a layer whose norms come after its branches. following: None for the last layer."""
        output_adds = isinstance(self.products.output, EightBitProduct)
        mlp = None if following is None else following.before_attention
        return EightBitPostNorms(self.before_mlp, mlp, kind, output_adds)


@dataclass(frozen=True, slots=True, eq=False)
class _PartsLoader:
    """Makes the parts of one layer from its weights, step by step."""

    layer: Layer
    weights: LayerWeights
    shared: SharedTables
    kind: EightBit
    layer_input: LayerInput

    @property
    def is_post_norm(self) -> bool:
        return self.layer.placement is NormPlacement.POST

    @property
    def inner_kind(self) -> EightBit:
        return choose_inner_kind(self.kind, self.shared.parameters.device)

    def smooth_qkv(self) -> tuple[SmoothedNorm | None, Linear]:
        """Smooth the norm that queries, keys and values are computed from; None where there is none."""
        norms, layer_input, qkv_proj = self.weights.norms, self.layer_input, self.weights.qkv_proj
        norm = layer_input.norm if self.is_post_norm else norms.attention or layer_input.norm
        if norm is None:
            return None, qkv_proj
        # Embeddings that a layer reads without a norm of its own are the residual too, and stay as they are.
        is_residual = not self.is_post_norm and norms.attention is None
        peaks = None if layer_input.ranges is None or is_residual else layer_input.ranges.attention
        return smooth(norm, qkv_proj, peaks)

    def smooth_up(self) -> tuple[SmoothedNorm, Linear]:
        """Smooth the norm between attention and MLP, whose rows the up product reads."""
        norms, ranges = self.weights.norms, self.layer_input.ranges
        norm = norms.attention if self.is_post_norm else norms.mlp
        assert norm is not None  # `find_eight_bit_obstacle` names the others
        return smooth(norm, self.weights.up, None if ranges is None else ranges.mlp)

    def fold_values(self, qkv_proj: Linear, norm: SmoothedNorm) -> FoldedValues | None:
        """Scale the values so that attention can write e4m3; None where it writes 16 bit. norm: it limits the values,
        which are computed from its rows."""
        if self.inner_kind is not EightBit.FP8:
            return None
        return FoldedValues.fold(qkv_proj, self.weights.output, self.layer.attention, norm.rows, self.kind)

    def build_products(self, qkv_proj: Linear, up: Linear, folded: FoldedValues | None) -> EightBitProducts:
        """Quantize the weights. The output product stays in 16 bit where no values are folded."""
        weights, dtype, inner_kind = self.weights, self.shared.parameters.dtype, self.inner_kind
        output: Linear | EightBitProduct = weights.output
        if folded is not None:
            epilogue = ProductEpilogue(residual_norm=self.layer_input.norm if self.is_post_norm else None)
            output = EightBitProduct(folded.output, dtype, kind=inner_kind, epilogue=epilogue)
        activated = ProductEpilogue(weights.mlp.activation, weights.mlp.gated)
        added = ProductEpilogue(residual_norm=weights.norms.attention if self.is_post_norm else None)
        return EightBitProducts(
            qkv_proj=EightBitProduct(qkv_proj, dtype, kind=self.kind),
            output=output,
            up=EightBitProduct(up, dtype, kind=self.kind, epilogue=activated),
            down=EightBitProduct(weights.down, dtype, kind=inner_kind, epilogue=added),
            inner_kind=inner_kind,
            adds_residual=self.is_post_norm,
        )


def choose_inner_kind(kind: EightBit, device: torch.device) -> EightBit:
    """Return the kind of the products whose input the kernel before writes: e4m3 where the device has it, which needs
    no pass of its own."""
    has_e4m3 = torch.cuda.get_device_capability(device) >= FIRST_OF_EIGHT_BIT[EightBit.FP8]
    return EightBit.FP8 if has_e4m3 else kind
