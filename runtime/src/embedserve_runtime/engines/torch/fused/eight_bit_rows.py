"""QuantizedRows in 8 bit, with a scale each: of numbers as they are, or of their norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from embedserve_runtime.engines.torch.fused.deferred_norm import DeferredLayerNorm
from embedserve_runtime.engines.torch.fused.kernels import eight_bit as kernels
from embedserve_runtime.engines.torch.fused.quantizing import DTYPES
from embedserve_runtime.engines.torch.fused.smoothing import SmoothedNorm
from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.model.architecture import NormKind

KINDS = {EightBit.FP8: 1, EightBit.INT8: 2}
# Programs of a multiprocessor that norm rows.
NORMS_TOGETHER = 16


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedRows:
    """Rows quantized to 8 bit.

    values: 8 bit (tokens, width), times scales, float32 (tokens,). lengths: Euclidean, of the rows.
    """

    values: Tensor
    scales: Tensor
    lengths: Tensor

    @classmethod
    def quantize(cls, values: Tensor, kind: EightBit) -> QuantizedRows:
        count, width = values.shape
        rows = cls.empty(values, kind)
        kernel: Callable[..., object] = kernels.quantize[(count,)]
        kernel(
            values=values,
            out=rows.values,
            scales=rows.scales,
            lengths=rows.lengths,
            width=width,
            EIGHT=KINDS[kind],
            BLOCK=triton.next_power_of_2(width),
            num_warps=4 if width <= 2048 else 8,
        )
        return rows

    @classmethod
    def empty(cls, like: Tensor, kind: EightBit) -> QuantizedRows:
        scales, lengths = (like.new_empty(len(like), dtype=torch.float32) for _ in range(2))
        return cls(torch.empty_like(like, dtype=DTYPES[kind]), scales, lengths)


def normalize_to_eight_bit(
    branch: Tensor,
    norm: SmoothedNorm,
    kind: EightBit,
    *,
    residual: Tensor | DeferredLayerNorm | None = None,
    keep: Tensor | None = None,
) -> tuple[QuantizedRows, DeferredLayerNorm]:
    """Compute norm(residual + branch), smoothed in 8 bit and exact as deferred.

    keep: where the sum goes, which may be an input; None for the branch's memory.
    """
    (count, width), total = branch.shape, branch if keep is None else keep
    rows = QuantizedRows.empty(branch, kind)
    factors, shifts = (torch.empty_like(rows.scales) for _ in range(2))
    deferred = residual if isinstance(residual, DeferredLayerNorm) else None
    residual_bias = None if deferred is None else deferred.norm.bias
    block, smoothed = triton.next_power_of_2(width), norm.rows
    programs = NORMS_TOGETHER * torch.cuda.get_device_properties(branch.device).multi_processor_count
    kernel: Callable[..., object] = kernels.add_norm[(min(count, programs),)]
    kernel(
        branch=branch,
        residual=residual if deferred is None else deferred.sums,
        residual_factors=None if deferred is None else deferred.factors,
        residual_shifts=None if deferred is None else deferred.shifts,
        residual_weight=None if deferred is None else deferred.norm.weight,
        residual_bias=residual_bias,
        weight=smoothed.weight,
        bias=smoothed.bias,
        total=None if residual is None else total,
        eight=rows.values,
        scales=rows.scales,
        lengths=rows.lengths,
        factors=factors,
        shifts=shifts,
        rows=count,
        width=width,
        eps=smoothed.eps,
        ADD=residual is not None,
        DEFERRED=deferred is not None,
        DEFERRED_BIAS=residual_bias is not None,
        RMS=smoothed.kind is NormKind.RMS,
        BIAS=smoothed.bias is not None,
        EIGHT=KINDS[kind],
        BLOCK=block,
        num_warps=max(1, block // 1024),
    )
    return rows, DeferredLayerNorm(total, factors, shifts, norm.exact)
