"""Skinny (small-M) matrix products, which also take over the layer norms between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from embedserve_runtime.engines.torch.fused.activations import NO_ACTIVATION
from embedserve_runtime.engines.torch.fused.kernels import skinny_gemm as skinny_kernels
from embedserve_runtime.engines.torch.parameters import Linear, Normalization

# Up to here a kernel of our own, whose epilogue saves one, is faster than the library's product and what follows it: a
# short text takes 0.82 to 0.85 of the time on an H200, one of 32 tokens 1.09 (docs/engineering/gpu-measurements.md).
MAX_SKINNY_TOKENS = 16
# Shared memory that it may take: what every multiprocessor from Ampere on has.
SHARED_BYTES = 96 * 1024
# Of the depth, a warp's part of a step.
SPLIT_DEPTH = 64


@dataclass(frozen=True, slots=True, eq=False)
class SkinnyDeferredNorm:
    """norm(values), which is left to the products that read it.

    values: (tokens, width). moments: float32, of tiles of each row.
    """

    values: Tensor
    moments: Tensor
    norm: Normalization

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True, eq=False)
class NormLinear:
    """linear(norm(x)), computed from x and its moments.

    mean_coefficients: float32 (columns,), W times the norm's scale, which the mean of a row is multiplied by. bias:
    float32 (columns,), b and W times the norm's shift.
    """

    linear: Linear
    norm: Normalization
    mean_coefficients: Tensor
    bias: Tensor

    @classmethod
    def fold(cls, linear: Linear, norm: Normalization) -> NormLinear:
        wide = linear.weight.float()
        bias = wide @ _shift(norm)
        return cls(linear, norm, wide @ norm.weight, bias if linear.bias is None else bias + linear.bias)

    def __call__(self, rows: SkinnyDeferredNorm, kind: int = NO_ACTIVATION) -> Tensor:
        """Return activation(linear(norm(x))), (tokens, columns). rows: of this norm. kind: of the activation."""
        out = rows.values.new_empty((len(rows), len(self.bias)))
        _launch(rows, self, out, kind=kind)
        return out


def skinny_linear(
    rows: Tensor, linear: Linear, *, bias: bool = True, kind: int = NO_ACTIVATION, add: Tensor | None = None
) -> Tensor:
    """Return activation(x W^T + b) (+ add), (tokens, columns); `add` is overwritten and returned. bias: False leaves
    out b. kind: of the activation. For at most `MAX_SKINNY_TOKENS` tokens."""
    out = rows.new_empty((len(rows), len(linear.weight))) if add is None else add
    _launch(rows, linear if bias else Linear(linear.weight, None), out, kind=kind, add=add)
    return out


def skinny_linear_add_norm(
    rows: Tensor, linear: Linear, residual: Tensor | SkinnyDeferredNorm, norm: Normalization
) -> SkinnyDeferredNorm:
    """Return norm(x W^T + b + residual), whose norm is left to the products that read it."""
    count, columns = len(rows), len(linear.weight)
    tiles = triton.cdiv(columns, skinny_kernels.SUM_COLUMNS.value)
    moments = rows.new_empty((2, tiles, _choose_tile_height(count)), dtype=torch.float32)
    sums = SkinnyDeferredNorm(rows.new_empty((count, columns)), moments, norm)
    _launch(rows, linear, sums, add=residual)
    return sums


def _launch(
    rows: Tensor | SkinnyDeferredNorm,
    linear: Linear | NormLinear,
    out: Tensor | SkinnyDeferredNorm,
    *,
    kind: int = NO_ACTIVATION,
    add: Tensor | SkinnyDeferredNorm | None = None,
) -> None:
    """Write activation(linear(rows)) + add into `out`, with the moments of its rows where its norm is deferred."""
    folded = linear if isinstance(linear, NormLinear) else None
    weight = linear.linear.weight if isinstance(linear, NormLinear) else linear.weight
    bias, moments = linear.bias, out.moments if isinstance(out, SkinnyDeferredNorm) else None
    (columns, depth), count = weight.shape, len(rows)
    height, width = _choose_tile_height(count), int(skinny_kernels.SUM_COLUMNS.value)
    block = width if moments is not None or columns < 2048 else 2 * width
    kernel: Callable[..., object] = skinny_kernels.skinny_product[(triton.cdiv(columns, block),)]
    normed = rows if isinstance(rows, SkinnyDeferredNorm) else None
    added = add if isinstance(add, SkinnyDeferredNorm) else None
    kernel(
        values=rows if isinstance(rows, Tensor) else rows.values,
        moments=None if normed is None else normed.moments,
        scale=None if folded is None else folded.norm.weight,
        mean_coefficients=None if folded is None else folded.mean_coefficients,
        weight=weight,
        bias=bias,
        add=add if added is None else added.values,
        add_moments=None if added is None else added.moments,
        add_scale=None if added is None else added.norm.weight,
        add_shift=None if added is None else _shift(added.norm),
        out=out if isinstance(out, Tensor) else out.values,
        out_moments=moments,
        rows=count,
        columns=columns,
        depth=depth,
        eps=0.0 if folded is None else folded.norm.eps,
        add_eps=0.0 if added is None else added.norm.eps,
        NORMED=folded is not None,
        HAS_BIAS=bias is not None,
        ADD=0 if add is None else 1 if added is None else 2,
        SUMS=moments is not None,
        KIND=kind,
        BLOCK_M=height,
        BLOCK_N=block,
        SPLIT_DEPTH=SPLIT_DEPTH,
        BLOCK_TILES=int(triton.next_power_of_2(triton.cdiv(depth, width))),
        ADD_TILES=int(triton.next_power_of_2(triton.cdiv(columns, width))),
        num_warps=int(skinny_kernels.SPLITS.value),
        num_stages=_choose_stages(depth, height + block),
    )


def _choose_stages(depth: int, tile_rows: int) -> int:
    """Return one more than the steps in flight at a time: as many as there is room for, since each waits
    for memory, and there are few. tile_rows: of both operands together."""
    step = SPLIT_DEPTH * int(skinny_kernels.SPLITS.value)
    room = SHARED_BYTES // (2 * step * tile_rows)
    return 1 + max(1, min(int(triton.cdiv(depth, step)), room))


def _shift(norm: Normalization) -> Tensor:
    assert norm.bias is not None  # `can_run_skinny` says so
    return norm.bias


def _choose_tile_height(count: int) -> int:
    return max(16, int(triton.next_power_of_2(count)))
