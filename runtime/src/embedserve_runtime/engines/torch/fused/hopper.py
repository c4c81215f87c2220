"""Launches the products for Hopper: one kernel for 16 bit and 8 bit, for every activation and residual."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embedserve_runtime.engines.torch.fused.activations import NO_ACTIVATION
from embedserve_runtime.engines.torch.fused.deferred_norm import DeferredLayerNorm

if TYPE_CHECKING:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

HOPPER = 9
# The first whose Gluon has all that the kernel is written in.
FIRST_TRITON = (3, 6)
# A tile of the output, half as wide where gate and up take one half each.
ROWS, COLUMNS = 128, 128
# Bytes of a block along the depth: what the accelerator lays out without conflicts.
STEP_BYTES = 128
# Stages of the pipeline: blocks of operands that are in flight or being read. The shared memory has room for five
# besides the tiles that wait to be written; with a result in e4m3 four are no slower (measured on an H100).
STAGES, STAGES_OF_EIGHT_BIT_RESULT = 5, 4
# Rows of tiles that use the same weights one after the other, from the cache.
GROUP_SIZE_M = 8


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Upper bounds of the norms of weight rows and of biases, for plain or gate columns and for up columns."""

    weight: float = 0.0
    bias: float = 0.0
    up_weight: float = 0.0
    up_bias: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class EightBitSides:
    """Scales of the rows, if they have any, and of the weights' channels, float32. lengths, out_scales: float32
    (rows,), where the result is e4m3 too: lengths of the rows, and where the scales of the result go."""

    rows: Tensor | None
    channels: Tensor
    lengths: Tensor | None = None
    out_scales: Tensor | None = None
    bounds: Bounds = Bounds()


def find_hopper_obstacle(weight: Tensor) -> str | None:
    """Find what keeps the kernel from the products of `weight` (channels, depth), on a CUDA device; None if nothing
    does."""
    reason = find_hopper_device_obstacle(weight.device)
    if reason is not None:
        return reason
    if len(weight) % COLUMNS or weight.stride(0) * weight.element_size() % 16:
        return f"channels come in steps of {COLUMNS}, their rows in steps of 16 bytes"
    return None


def find_hopper_device_obstacle(device: torch.device) -> str | None:
    """Find what keeps the kernel from a CUDA device; None if nothing does."""
    if torch.cuda.get_device_capability(device)[0] != HOPPER:
        return "the kernel is for Hopper"
    if not has_gluon():
        return "the kernel is written in the Gluon of Triton 3.6"
    return None


def has_gluon() -> bool:
    """Return whether Triton is installed, in a version whose Gluon the kernel is written in."""
    try:
        match = re.match(r"(\d+)\.(\d+)", version("triton"))
    except PackageNotFoundError:
        return False
    return match is not None and (int(match[1]), int(match[2])) >= FIRST_TRITON


class HopperProduct:
    """activation(x W^T + b) (+ residual), or activation(gate) * up with both in one product. The bias of a deferred
    residual's norm is part of b (`add_norm_bias`).

    weight: one that `find_hopper_obstacle` has nothing against. kind: the kind of the activation.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, kind: int = NO_ACTIVATION, gated: bool = False
    ) -> None:
        self._weight = _describe_tensor(
            weight, COLUMNS // 2 if gated else COLUMNS, STEP_BYTES // weight.element_size()
        )
        self.columns = len(weight) // 2 if gated else len(weight)
        self._bias = bias
        self._kind = kind
        self._gated = gated
        # The columns of a subtile of the result, of which the kernel writes two for each tile.
        self._subtile_columns = (COLUMNS // 2 if gated else COLUMNS) // 2
        self._programs = torch.cuda.get_device_properties(weight.device).multi_processor_count

    def __call__(
        self,
        rows: Tensor,
        out: Tensor,
        *,
        residual: Tensor | DeferredLayerNorm | None = None,
        eight: EightBitSides | None = None,
    ) -> Tensor:
        """Write the product into `out`, (rows, columns), which may be the residual's memory, and return it."""
        from embedserve_runtime.engines.torch.fused.kernels import hopper

        bounds = Bounds() if eight is None else eight.bounds
        quantizes_out = eight is not None and eight.out_scales is not None
        deferred = residual if isinstance(residual, DeferredLayerNorm) else None
        add = residual.sums if isinstance(residual, DeferredLayerNorm) else residual
        kernel: Callable[..., object] = hopper.product[(self._programs,)]
        kernel(
            left=_describe_tensor(rows, ROWS, STEP_BYTES // rows.element_size()),
            right=self._weight,
            out=_describe_tensor(out, ROWS, self._subtile_columns),
            add=None if add is None else _describe_tensor(add, ROWS, self._subtile_columns),
            bias=self._bias,
            left_scales=None if eight is None else eight.rows,
            right_scales=None if eight is None else eight.channels,
            lengths=eight.lengths if eight is not None and quantizes_out else None,
            out_scales=None if eight is None else eight.out_scales,
            factors=None if deferred is None else deferred.factors,
            shifts=None if deferred is None else deferred.shifts,
            norm_weight=None if deferred is None else deferred.norm.weight,
            rows=len(rows),
            columns=self.columns,
            depth=rows.shape[1],
            weight_bound=bounds.weight,
            bias_bound=bounds.bias,
            up_weight_bound=bounds.up_weight,
            up_bias_bound=bounds.up_bias,
            GATED=self._gated,
            HAS_BIAS=self._bias is not None,
            KIND=self._kind,
            SCALED=eight is not None,
            SCALED_ROWS=eight is not None and eight.rows is not None,
            ADD=residual is not None,
            DEFERRED=deferred is not None,
            QUANTIZED_OUT=quantizes_out,
            STAGES=STAGES_OF_EIGHT_BIT_RESULT if quantizes_out else STAGES,
            GROUP_SIZE_M=GROUP_SIZE_M,
            num_warps=4,
            maxnreg=168,
        )
        return out


def _describe_tensor(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Describe a tensor for the tensor memory accelerator, in blocks of rows times columns."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    kinds = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.int8: gl.int8}
    kind = kinds.get(tensor.dtype, gl.float8e4nv)
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], kind)
    return TensorDescriptor.from_tensor(tensor, [rows, columns], layout)
