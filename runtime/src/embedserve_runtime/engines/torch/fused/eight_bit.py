"""An encoder whose products run in 8 bit. All else is as in 16 bit.

Every row of a product's input has a scale, and every output channel of the weights. An e4m3 input of the down product
is written by the up product itself, when the largest number of its row is not known yet: its scale is a bound, the
length of the row times that of the longest weight (Cauchy and Schwarz), which a floating format can afford. int8
cannot: where the device has e4m3 the down product behind int8 products is in e4m3 too, elsewhere its input takes a pass
of its own. So it is with the output product, whose input attention writes as e4m3 (`quantizing`); elsewhere, and where
no norm limits the values, it is in 16 bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from embedserve_runtime.engines.base import PackedBatch
from embedserve_runtime.engines.torch.device_batch import DeviceBatch, bring
from embedserve_runtime.engines.torch.fused.deferred_norm import DeferredLayerNorm, add_norm_bias
from embedserve_runtime.engines.torch.fused.eight_bit_rows import QuantizedRows, in_eight_bit
from embedserve_runtime.engines.torch.fused.encoder import FusedSelfAttention, SharedTables, embed_batch
from embedserve_runtime.engines.torch.fused.hopper import Bounds, EightBitSides, HopperProduct, why_not_hopper
from embedserve_runtime.engines.torch.fused.kernels import eight_bit as kernels
from embedserve_runtime.engines.torch.fused.operations import ACTIVATION_KINDS, normed
from embedserve_runtime.engines.torch.fused.quantizing import DTYPES, FoldedValues, quantized
from embedserve_runtime.engines.torch.fused.support import FIRST_OF_EIGHT_BIT, EightBit
from embedserve_runtime.engines.torch.parameters import Linear, Normalization, Parameters
from embedserve_runtime.engines.torch.tables import EmbeddingTables, LayerNorms
from embedserve_runtime.model.architecture import Activation, Attention, Encoder, Layer, Mlp, NormPlacement

# e4m3 rounds a number, and so a length, by up to a sixteenth; in a product two are rounded.
ROUNDING = 1.13
MAX_TOKENS_OF_SMALL_TILES = 1024
# Of the batch that shows the means of values: a length that attention usually sees.
SAMPLE_LENGTH, SAMPLE_TOKENS = 128, 1024


class EightBitProduct:
    """activation(x W^T + b) (+ residual), or activation(gate) * up with both in one product."""

    def __init__(
        self,
        linear: Linear,
        dtype: torch.dtype,
        *,
        kind: EightBit,
        activation: Activation | None = None,
        gated: bool = False,
        residual_norm: Normalization | None = None,
    ) -> None:
        """linear: gate before up where `gated`. dtype: of the model. residual_norm: of a residual that is deferred."""
        weight, scales = quantized(linear.weight, kind)
        self._kind = kind
        self._residual_norm = residual_norm
        self._bias = add_norm_bias(residual_norm, linear.bias)
        self._scales = scales
        self._activation = -1 if activation is None else ACTIVATION_KINDS[activation]
        self._gated = gated
        self._columns = len(weight) // 2 if gated else len(weight)
        self._dtype = dtype
        self._weight = weight
        parts = torch.split(linear.weight.float(), self._columns)
        bounds = [ROUNDING * _longest(part) for part in parts]
        bias_bounds = [0.0] * len(parts)
        if linear.bias is not None:
            biases = torch.split(linear.bias.float(), self._columns)
            bias_bounds = [float(part.abs().max()) for part in biases]
        self._bounds = Bounds(bounds[0], bias_bounds[0], bounds[-1], bias_bounds[-1])
        self._hopper: HopperProduct | None = None
        if why_not_hopper(weight) is None:
            self._hopper = HopperProduct(weight, self._bias, kind=self._activation, gated=gated)
        self._multiprocessors = torch.cuda.get_device_properties(weight.device).multi_processor_count

    def __call__(self, given: QuantizedRows | Tensor) -> Tensor:
        """(tokens, columns) in the dtype of the model. given: 8-bit values (tokens, depth) alone where rows have no
        scales."""
        values = given.values if isinstance(given, QuantizedRows) else given
        out = values.new_empty((len(values), self._columns), dtype=self._dtype)
        self._run(given, out, None, None)
        return out

    def onto(self, given: QuantizedRows | Tensor, residual: Tensor | DeferredLayerNorm) -> Tensor:
        """The sum of the result and the residual, in the residual's memory."""
        assert self._residual_norm is (residual.norm if isinstance(residual, DeferredLayerNorm) else None)
        out = residual.sums if isinstance(residual, DeferredLayerNorm) else residual
        self._run(given, out, residual, None)
        return out

    def shift(self, by: Tensor) -> None:
        """Adds to the bias, (columns,)."""
        assert self._bias is not None  # who shifts has made one
        self._bias += by

    def narrow(self, rows: QuantizedRows, kind: EightBit) -> QuantizedRows:
        """The result in 8 bit again, for the product of `kind` that follows."""
        if kind is EightBit.INT8:
            return QuantizedRows.of(self(rows), kind)
        out = rows.values.new_empty((len(rows.values), self._columns), dtype=DTYPES[kind])
        scales = torch.empty_like(rows.scales)
        self._run(rows, out, None, scales)
        return QuantizedRows(out, scales, scales)

    def _run(
        self,
        given: QuantizedRows | Tensor,
        out: Tensor,
        residual: Tensor | DeferredLayerNorm | None,
        out_scales: Tensor | None,
    ) -> None:
        rows = given if isinstance(given, QuantizedRows) else None
        values = given if isinstance(given, Tensor) else given.values
        scales, lengths = (None, None) if rows is None else (rows.scales, rows.lengths)
        count, depth = values.shape
        if self._hopper is not None and count > MAX_TOKENS_OF_SMALL_TILES:
            sides = EightBitSides(scales, self._scales, lengths, out_scales, self._bounds)
            self._hopper(values, out, residual=residual, eight=sides)
            return
        tile, bounds = self._tile(count), self._bounds
        deferred = residual if isinstance(residual, DeferredLayerNorm) else None
        # Also where there are fewer tiles: it is compiled in, and each number of programs would be compiled anew.
        programs = tile.together * self._multiprocessors
        kernel: Callable[..., object] = kernels.product[(programs,)]
        kernel(
            left=TensorDescriptor.from_tensor(values, [tile.rows, 128]),
            right=TensorDescriptor.from_tensor(self._weight, [tile.columns, 128]),
            left_scales=scales,
            right_scales=self._scales,
            bias=self._bias,
            add=residual if deferred is None else deferred.sums,
            lengths=None if out_scales is None else lengths,
            factors=None if deferred is None else deferred.factors,
            shifts=None if deferred is None else deferred.shifts,
            norm_weight=None if deferred is None else deferred.norm.weight,
            out=out,
            out_scales=out_scales,
            rows=count,
            columns=self._columns,
            depth=depth,
            weight_bound=bounds.weight,
            bias_bound=bounds.bias,
            up_weight_bound=bounds.up_weight,
            up_bias_bound=bounds.up_bias,
            GATED=self._gated,
            HAS_BIAS=self._bias is not None,
            KIND=self._activation,
            ADD=residual is not None,
            DEFERRED=deferred is not None,
            NARROW=out_scales is not None,
            INTEGER=self._kind is EightBit.INT8,
            SCALED_ROWS=scales is not None,
            BLOCK_M=tile.rows,
            BLOCK_N=tile.columns,
            BLOCK_K=128,
            GROUP_M=8,
            PROGRAMS=programs,
            FLATTEN=not self._gated,
            num_warps=tile.warps,
            num_stages=3,
        )

    def _tile(self, count: int) -> ProductTile:
        """Found by trying, on an H200: with an activation two programs share a multiprocessor, one multiplies while the
        other is at its activations; without one a wide tile reads its operands less often."""
        if count <= MAX_TOKENS_OF_SMALL_TILES:
            return ProductTile(64, 64, 4, 1)
        if self._gated:
            return ProductTile(128, 128, 8, 1)
        return ProductTile(128, 256, 8, 1) if self._activation < 0 else ProductTile(128, 128, 4, 2)


@dataclass(frozen=True, slots=True)
class ProductTile:
    """The tile of a product. together: programs of one multiprocessor."""

    rows: int
    columns: int
    warps: int
    together: int


def _longest(rows: Tensor) -> float:
    return float(rows.square().sum(dim=1).sqrt().max())


class EightBitEncoder:
    """A batch to final hidden states (tokens, hidden), of the layout's tokens, in the dtype of the parameters."""

    def __init__(
        self, encoder: Encoder, parameters: Parameters, kind: EightBit, *, flash: bool = False
    ) -> None:
        self._kind = kind
        self._tables = EmbeddingTables.of(encoder, parameters)
        shared = SharedTables(encoder, parameters, flash=flash)
        self._layers: list[EightBitLayer] = []
        before = self._tables.norm
        for number, layer in enumerate(encoder.layers):
            self._layers.append(
                EightBitLayer(layer, parameters, shared, f"layers.{number}", kind, before=before)
            )
            before = self._layers[-1].norms.mlp if layer.placement is NormPlacement.POST else None
        self._final_norm = parameters.optional_norm(encoder.final_norm, "final_norm")
        self._norms_come_first = all(layer.placement is NormPlacement.PRE for layer in encoder.layers)
        # Layers take the means of their values from their first batch.
        self(sample(encoder, parameters.device))

    def __call__(self, batch: DeviceBatch) -> Tensor:
        dtype = self._tables.words.dtype
        if not self._norms_come_first:
            hidden = self._with_norms_after(batch)
            return hidden if self._final_norm is None else normed(hidden, self._final_norm)
        hidden = embed_batch(self._tables, batch, torch.float32)
        first = self._layers[0].norms.attention
        given = QuantizedRows.of(hidden if first is None else normed(hidden, first, dtype=dtype), self._kind)
        norms = [layer.norms.attention for layer in self._layers[1:]]
        for layer, following in zip(self._layers, [*norms, None], strict=True):
            given = layer.with_norms_first(hidden, given, batch, following)
        return hidden.to(dtype) if self._final_norm is None else normed(hidden, self._final_norm, dtype=dtype)

    def _with_norms_after(self, batch: DeviceBatch) -> Tensor:
        """Norms give 8 bit alone, and who adds to the residual that comes of one computes it. The last gives 16 bit."""
        norm = self._tables.norm
        sums = embed_batch(replace(self._tables, norm=None), batch, self._tables.words.dtype)
        given: QuantizedRows
        residual: Tensor | DeferredLayerNorm
        given, residual = (
            (QuantizedRows.of(sums, self._kind), sums)
            if norm is None
            else in_eight_bit(sums, norm, self._kind)
        )
        *others, last = self._layers
        for layer in others:
            total = layer.with_norms_after(residual, given, batch)
            given, residual = in_eight_bit(total, layer.norms.mlp, self._kind)
        return normed(last.with_norms_after(residual, given, batch), last.norms.mlp)


def sample(encoder: Encoder, device: torch.device) -> DeviceBatch:
    """Tokens at random."""
    length = min(SAMPLE_LENGTH, encoder.max_tokens)
    shape = SAMPLE_TOKENS // length, length
    ids = np.random.default_rng(0).integers(0, encoder.embeddings.vocabulary, shape, np.int32)
    return bring(PackedBatch.pack([*ids]), device)


def inner_kind(kind: EightBit, device: torch.device) -> EightBit:
    """Return the kind of the products whose input the kernel before writes: e4m3 where the device has it, which needs
    no pass of its own."""
    has_e4m3 = torch.cuda.get_device_capability(device) >= FIRST_OF_EIGHT_BIT[EightBit.FP8]
    return EightBit.FP8 if has_e4m3 else kind


class EightBitAttention:
    """Queries, keys and values, attention and its output product. Where the device has e4m3 and a norm limits the
    values, attention writes e4m3, of values less what their mean is in the first batch."""

    def __init__(
        self,
        description: Attention,
        parameters: Parameters,
        shared: SharedTables,
        name: str,
        kind: EightBit,
        *,
        norm: Normalization | None,
        residual_norm: Normalization | None,
    ) -> None:
        """norm: of what queries, keys and values are made of, if any. residual_norm: of a residual that is deferred."""
        names = [f"{name}.{part}" for part in ("query", "key", "value")]
        joint = parameters.linear(names, description.qkv_bias)
        output = parameters.linear([f"{name}.output"], description.output_bias)
        narrow = inner_kind(kind, parameters.device)
        self._uncentred: FoldedValues | None = None
        self._output: Linear | EightBitProduct = output
        if norm is not None and narrow is EightBit.FP8:
            self._uncentred = folded = FoldedValues.of(joint, output, description, norm, kind)
            joint = folded.joint
            self._output = EightBitProduct(
                folded.output, parameters.dtype, kind=narrow, residual_norm=residual_norm
            )
        self._joint = EightBitProduct(joint, parameters.dtype, kind=kind)
        dtype = None if self._uncentred is None else DTYPES[narrow]
        self._attend: FusedSelfAttention[QuantizedRows] = FusedSelfAttention(
            description, parameters, shared, name, self._joint, dtype=dtype
        )

    def __call__(self, given: QuantizedRows, batch: DeviceBatch) -> Tensor:
        """(tokens, hidden), in the dtype of the model."""
        return self._output(self._attended(given, batch))

    def onto(
        self, residual: Tensor | DeferredLayerNorm, given: QuantizedRows, batch: DeviceBatch
    ) -> tuple[Tensor, Tensor | DeferredLayerNorm | None]:
        """The sum with the residual, which is overwritten; or, where the output product is in 16 bit, its result and
        the residual that is still to be added."""
        attended = self._attended(given, batch)
        if isinstance(self._output, Linear):
            return self._output(attended), residual
        return self._output.onto(attended, residual), None

    def _attended(self, given: QuantizedRows, batch: DeviceBatch) -> Tensor:
        attended = self._attend(given, batch)
        if isinstance(self._output, Linear) or self._uncentred is None:
            return attended
        of_joint, of_output = self._uncentred.shifts(attended)
        self._joint.shift(of_joint)
        self._output.shift(of_output)
        self._uncentred = None
        return self._attend(given, batch)


class EightBitLayer:
    """One layer, as `FusedLayer` has it."""

    def __init__(
        self,
        layer: Layer,
        parameters: Parameters,
        shared: SharedTables,
        name: str,
        kind: EightBit,
        *,
        before: Normalization | None,
    ) -> None:
        """before: the norm of what the layer gets, if any; deferred where norms come after."""
        assert isinstance(layer.mlp, Mlp)  # `why_not_eight_bit` names the others
        self._kind = kind
        self._inner = inner_kind(kind, parameters.device)
        self.norms = LayerNorms.of(layer, parameters, name)
        after = layer.placement is NormPlacement.POST
        self._attention = EightBitAttention(
            layer.attention,
            parameters,
            shared,
            f"{name}.attention",
            kind,
            norm=before if after else self.norms.attention or before,
            residual_norm=before if after else None,
        )
        mlp, dtype = layer.mlp, parameters.dtype
        names = [f"{name}.mlp.gate", f"{name}.mlp.up"] if mlp.gated else [f"{name}.mlp.up"]
        self._up = EightBitProduct(
            parameters.linear(names, mlp.up_bias),
            dtype,
            kind=kind,
            activation=mlp.activation,
            gated=mlp.gated,
        )
        down = parameters.linear([f"{name}.mlp.down"], mlp.down_bias)
        self._down = EightBitProduct(
            down, dtype, kind=self._inner, residual_norm=self.norms.attention if after else None
        )

    def with_norms_after(
        self, residual: Tensor | DeferredLayerNorm, given: QuantizedRows, batch: DeviceBatch
    ) -> Tensor:
        """What the layer's last norm is of; `residual` is overwritten. given: the same in 8 bit."""
        assert self.norms.attention is not None  # `why_not_eight_bit` names the others
        branch, left = self._attention.onto(residual, given, batch)
        given, between = in_eight_bit(branch, self.norms.attention, self._kind, residual=left)
        return self._down.onto(self._up.narrow(given, self._inner), between)

    def with_norms_first(
        self, hidden: Tensor, given: QuantizedRows, batch: DeviceBatch, following: Normalization | None
    ) -> QuantizedRows:
        """Adds the layer's branches to `hidden`, in place, and gives norm `following` of it in 8 bit."""
        branch = self._attention(given, batch)
        between, _ = in_eight_bit(branch, self.norms.mlp, self._kind, residual=hidden, keep=hidden)
        branch = self._down(self._up.narrow(between, self._inner))
        if following is None:
            normed(branch, None, residual=hidden, keep=hidden)
            return between
        after, _ = in_eight_bit(branch, following, self._kind, residual=hidden, keep=hidden)
        return after
