"""Launches the product of few rows, and keeps the sums that such products hand on without their norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from embedserve_runtime.engines.torch.fused.kernels import few
from embedserve_runtime.engines.torch.parameters import Linear, Normalization

# Up to here a kernel of our own, whose epilogue saves one, is faster than the library's product and what follows it.
MOST_TOKENS_OF_FEW = 64
# Shared memory that it may take: what every multiprocessor from Ampere on has.
SHARED_BYTES = 96 * 1024
WARPS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """norm(values), not computed yet. values: float32 (tokens, width). moments: of tiles of each row."""

    values: Tensor
    moments: Tensor
    norm: Normalization

    def __len__(self) -> int:
        return len(self.values)


def product_of_few(
    given: Tensor | Sums, linear: Linear, *, bias: bool = True, kind: int = -1, add: Tensor | None = None
) -> Tensor:
    """activation(x W^T + b) (+ add), (tokens, columns); `add` is overwritten and given. bias: False leaves out b.
    kind: of the activation, -1 for none. For at most `MOST_TOKENS_OF_FEW` tokens."""
    out = linear.weight.new_empty((len(given), len(linear.weight))) if add is None else add
    _launch(given, linear, out, has_bias=bias, kind=kind, add=add)
    return out


def sums_of_few(given: Tensor, linear: Linear, residual: Tensor | Sums, norm: Normalization) -> Sums:
    """norm(x W^T + b + residual)."""
    count, columns = len(given), len(linear.weight)
    tiles = triton.cdiv(columns, few.SUM_COLUMNS.value)
    values = given.new_empty((count, columns), dtype=torch.float32)
    sums = Sums(values, values.new_empty((2, tiles, _height(count))), norm)
    _launch(given, linear, values, add=residual, moments=sums.moments)
    return sums


def _launch(
    given: Tensor | Sums,
    linear: Linear,
    out: Tensor,
    *,
    has_bias: bool = True,
    kind: int = -1,
    add: Tensor | Sums | None = None,
    moments: Tensor | None = None,
) -> None:
    (columns, depth), count, weight = linear.weight.shape, len(given), linear.weight
    height, width = _height(count), few.SUM_COLUMNS.value
    block = width if moments is not None or columns < 2048 else 2 * width
    # A step's part of a warp: less where rows are many, so that two steps find room.
    step = 16 if height > 32 else 32
    size = (4 if isinstance(given, Sums) else 2) * height + 2 * block
    stages = min(triton.cdiv(depth, step * WARPS), SHARED_BYTES // (step * WARPS * size))
    kernel: Callable[..., object] = few.product_of_few[(triton.cdiv(columns, block),)]
    kernel(
        *_of(given, out),
        *(weight, weight if linear.bias is None else linear.bias),
        *_of(out if add is None else add, out),
        *(out, out if moments is None else moments),
        *(count, columns, depth),
        *(_eps(given), _eps(add)),
        NORMED=isinstance(given, Sums),
        HAS_BIAS=has_bias and linear.bias is not None,
        ADD=0 if add is None else 2 if isinstance(add, Sums) else 1,
        SUMS=moments is not None,
        KIND=kind,
        BLOCK_M=height,
        BLOCK_N=block,
        SPLIT_DEPTH=step,
        BLOCK_TILES=int(triton.next_power_of_2(triton.cdiv(depth, width))),
        ADD_TILES=int(triton.next_power_of_2(triton.cdiv(columns, width))),
        num_warps=WARPS,
        num_stages=max(2, stages),
    )


def _of(given: Tensor | Sums, placeholder: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values, moments, weight and bias of the norm; `placeholder` stands where there is none, and is not read."""
    if not isinstance(given, Sums):
        return given, placeholder, placeholder, placeholder
    bias = given.norm.bias
    assert bias is not None  # `few_run` in support says so
    return given.values, given.moments, given.norm.weight, bias


def _eps(given: Tensor | Sums | None) -> float:
    return given.norm.eps if isinstance(given, Sums) else 0.0


def _height(count: int) -> int:
    return max(16, int(triton.next_power_of_2(count)))
