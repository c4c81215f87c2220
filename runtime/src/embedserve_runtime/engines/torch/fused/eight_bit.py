"""Computes matrix products in 8 bit.

Every row of a product's input has a scale, and every output channel of the weights. An e4m3 input of the down product
is written by the up product itself, when the largest number of its row is not known yet: its scale is a bound, the
length of the row times that of the longest weight (Cauchy and Schwarz), which a floating format can afford. int8
cannot: where the device has e4m3 the down product after int8 products is in e4m3 too, elsewhere its input takes a pass
of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from embedserve_runtime.engines.torch.fused.activations import ACTIVATION_KINDS, NO_ACTIVATION
from embedserve_runtime.engines.torch.fused.deferred_norm import DeferredLayerNorm, add_norm_bias
from embedserve_runtime.engines.torch.fused.eight_bit_rows import QuantizedRows
from embedserve_runtime.engines.torch.fused.hopper import (
    Bounds,
    EightBitSides,
    HopperProduct,
    find_hopper_obstacle,
)
from embedserve_runtime.engines.torch.fused.kernels import eight_bit as kernels
from embedserve_runtime.engines.torch.fused.quantizing import DTYPES, quantize
from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.engines.torch.parameters import Linear, Normalization
from embedserve_runtime.model.activations import Activation

# e4m3 rounds a number, and so a length, by up to a sixteenth; in a product two are rounded.
ROUNDING = 1.13
MAX_TOKENS_OF_SMALL_TILES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class ProductEpilogue:
    """The operations that follow a product in the same kernel.

    gated: the weight holds a gate before the up product. residual_norm: of a residual that is deferred.
    """

    activation: Activation | None = None
    gated: bool = False
    residual_norm: Normalization | None = None


PLAIN = ProductEpilogue()


class EightBitProduct:
    """activation(x W^T + b) (+ residual), or activation(gate) * up with both in one product.

    dtype: the dtype of the model.
    """

    def __init__(
        self,
        linear: Linear,
        dtype: torch.dtype,
        *,
        kind: EightBit,
        epilogue: ProductEpilogue = PLAIN,
    ) -> None:
        activation, gated, residual_norm = epilogue.activation, epilogue.gated, epilogue.residual_norm
        weight, scales = quantize(linear.weight, kind)
        self._kind = kind
        self._residual_norm = residual_norm
        self._bias = add_norm_bias(residual_norm, linear.bias)
        self._scales = scales
        self._activation = NO_ACTIVATION if activation is None else ACTIVATION_KINDS[activation]
        self._gated = gated
        self._columns = len(weight) // 2 if gated else len(weight)
        self._dtype = dtype
        self._weight = weight
        parts = torch.split(linear.weight.float(), self._columns)
        bounds = [ROUNDING * _find_longest(part) for part in parts]
        bias_bounds = [0.0] * len(parts)
        if linear.bias is not None:
            biases = torch.split(linear.bias.float(), self._columns)
            bias_bounds = [float(part.abs().max()) for part in biases]
        self._bounds = Bounds(bounds[0], bias_bounds[0], bounds[-1], bias_bounds[-1])
        self._hopper: HopperProduct | None = None
        if find_hopper_obstacle(weight) is None:
            self._hopper = HopperProduct(weight, self._bias, kind=self._activation, gated=gated)
        self._multiprocessors = torch.cuda.get_device_properties(weight.device).multi_processor_count

    def __call__(self, rows: QuantizedRows | Tensor) -> Tensor:
        """Return (tokens, columns) in the dtype of the model. rows: 8-bit values (tokens, depth) alone where rows have
        no scales."""
        values = rows.values if isinstance(rows, QuantizedRows) else rows
        out = values.new_empty((len(values), self._columns), dtype=self._dtype)
        self._run(rows, out, None, None)
        return out

    def add_to(self, rows: QuantizedRows | Tensor, residual: Tensor | DeferredLayerNorm) -> Tensor:
        """Add the result to the residual, in the residual's memory."""
        assert self._residual_norm is (residual.norm if isinstance(residual, DeferredLayerNorm) else None)
        out = residual.sums if isinstance(residual, DeferredLayerNorm) else residual
        self._run(rows, out, residual, None)
        return out

    def shift(self, by: Tensor) -> None:
        """Add to the bias, (columns,)."""
        assert self._bias is not None  # who shifts has made one
        self._bias += by

    def multiply_to_eight_bit(self, rows: QuantizedRows, kind: EightBit) -> QuantizedRows:
        """Return the result in 8 bit again, for the product of `kind` that follows."""
        if kind is EightBit.INT8:
            return QuantizedRows.quantize(self(rows), kind)
        out = rows.values.new_empty((len(rows.values), self._columns), dtype=DTYPES[kind])
        scales = torch.empty_like(rows.scales)
        self._run(rows, out, None, scales)
        return QuantizedRows(out, scales, scales)

    def _run(
        self,
        rows: QuantizedRows | Tensor,
        out: Tensor,
        residual: Tensor | DeferredLayerNorm | None,
        out_scales: Tensor | None,
    ) -> None:
        values = rows if isinstance(rows, Tensor) else rows.values
        scales, lengths = (None, None) if isinstance(rows, Tensor) else (rows.scales, rows.lengths)
        sides = EightBitSides(scales, self._scales, lengths, out_scales, self._bounds)
        if self._hopper is not None and len(values) > MAX_TOKENS_OF_SMALL_TILES:
            self._hopper(values, out, residual=residual, eight=sides)
        else:
            self._launch(values, out, residual, sides)

    def _launch(
        self, values: Tensor, out: Tensor, residual: Tensor | DeferredLayerNorm | None, sides: EightBitSides
    ) -> None:
        tile, bounds = self._choose_tile(len(values)), sides.bounds
        quantizes_out = sides.out_scales is not None
        deferred = residual if isinstance(residual, DeferredLayerNorm) else None
        # Also where there are fewer tiles: it is compiled in, and each number of programs would be compiled anew.
        programs = tile.together * self._multiprocessors
        kernel: Callable[..., object] = kernels.product[(programs,)]
        kernel(
            left=TensorDescriptor.from_tensor(values, [tile.rows, 128]),
            right=TensorDescriptor.from_tensor(self._weight, [tile.columns, 128]),
            left_scales=sides.rows,
            right_scales=sides.channels,
            bias=self._bias,
            add=residual if deferred is None else deferred.sums,
            lengths=sides.lengths if quantizes_out else None,
            factors=None if deferred is None else deferred.factors,
            shifts=None if deferred is None else deferred.shifts,
            norm_weight=None if deferred is None else deferred.norm.weight,
            out=out,
            out_scales=sides.out_scales,
            rows=len(values),
            columns=self._columns,
            depth=values.shape[1],
            weight_bound=bounds.weight,
            bias_bound=bounds.bias,
            up_weight_bound=bounds.up_weight,
            up_bias_bound=bounds.up_bias,
            GATED=self._gated,
            HAS_BIAS=self._bias is not None,
            KIND=self._activation,
            ADD=residual is not None,
            DEFERRED=deferred is not None,
            QUANTIZED_OUT=quantizes_out,
            INTEGER=self._kind is EightBit.INT8,
            SCALED_ROWS=sides.rows is not None,
            BLOCK_M=tile.rows,
            BLOCK_N=tile.columns,
            BLOCK_K=128,
            GROUP_M=8,
            PROGRAMS=programs,
            FLATTEN=not self._gated,
            num_warps=tile.warps,
            num_stages=3,
        )

    def _choose_tile(self, count: int) -> ProductTile:
        """Found by trying, on an H200: with an activation two programs share a multiprocessor, one multiplies while the
        other is at its activations; without one a wide tile reads its operands less often."""
        if count <= MAX_TOKENS_OF_SMALL_TILES:
            return ProductTile(64, 64, 4, 1)
        if self._gated:
            return ProductTile(128, 128, 8, 1)
        return ProductTile(128, 256, 8, 1) if self._activation < 0 else ProductTile(128, 128, 4, 2)


@dataclass(frozen=True, slots=True)
class ProductTile:
    """The tile shape of a product kernel.

    together: programs of one multiprocessor.
    """

    rows: int
    columns: int
    warps: int
    together: int


def _find_longest(rows: Tensor) -> float:
    return float(rows.square().sum(dim=1).sqrt().max())
