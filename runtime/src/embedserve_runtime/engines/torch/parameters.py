"""Loads parameters from the checkpoint to the device, and defines the two parts that are nothing else: products and
norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.architecture import Norm, NormKind
from embedserve_runtime.model.checkpoint import Weights


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A linear layer: x W^T (+ b)."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, value: Tensor) -> Tensor:
        return functional.linear(value, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class Normalization:
    """Normalizes the last axis, in float32 whatever the dtype of the values: 16-bit sums of squares lose vectors."""

    kind: NormKind
    eps: float
    weight: Tensor  # float32
    bias: Tensor | None  # float32

    @property
    def form(self) -> tuple[NormKind, float, bool]:
        """The properties that norms must share for one kernel to compute them together."""
        return self.kind, self.eps, self.bias is not None

    def __call__(self, value: Tensor) -> Tensor:
        wide, shape = value.float(), (value.shape[-1],)
        if self.kind is NormKind.RMS:
            normed = functional.rms_norm(wide, shape, self.weight, self.eps)
        else:
            normed = functional.layer_norm(wide, shape, self.weight, self.bias, self.eps)
        return normed.to(value.dtype)


class Parameters:
    """The parameters of a model as tensors of one device and dtype, read when asked for."""

    def __init__(self, weights: Weights, device: torch.device, dtype: torch.dtype) -> None:
        self._weights = weights
        self.device = device
        self.dtype = dtype

    def load_tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Load one parameter. Already of that dtype and on the CPU it is the array that was read, without a copy."""
        array = self._weights.read_tensor(name)
        owned = array.base is None or array.base.nbytes == array.nbytes
        # A part of a fused tensor would keep all of it in memory.
        return (
            _view_as_tensor(array if owned else array.copy())
            .to(self.device, dtype or self.dtype)
            .contiguous()
        )

    def load_stacked(self, names: Sequence[str]) -> Tensor:
        """Load several parameters joined along the first axis: one wide product is faster than several."""
        if len(names) == 1:
            return self.load_tensor(names[0])
        arrays = [self._weights.read_tensor(name) for name in names]
        shape = (sum(len(array) for array in arrays), *arrays[0].shape[1:])
        joined = torch.empty(shape, device=self.device, dtype=self.dtype)
        start = 0
        for array in arrays:
            joined[start : start + len(array)].copy_(_view_as_tensor(array))
            start += len(array)
        return joined

    def load_linear(self, names: Sequence[str], bias: bool) -> Linear:
        """Load the product with the joined weights of `names`."""
        weight = self.load_stacked([f"{name}.weight" for name in names])
        return Linear(weight, self.load_stacked([f"{name}.bias" for name in names]) if bias else None)

    def load_norm(self, norm: Norm, name: str) -> Normalization:
        weight = self.load_tensor(f"{name}.weight", torch.float32)
        has_bias = norm.kind is NormKind.LAYER and norm.bias
        return Normalization(
            kind=norm.kind,
            eps=norm.eps,
            weight=weight + 1 if norm.unit_offset else weight,
            bias=self.load_tensor(f"{name}.bias", torch.float32) if has_bias else None,
        )

    def load_optional_norm(self, norm: Norm | None, name: str) -> Normalization | None:
        return None if norm is None else self.load_norm(norm, name)

    def read_float32(self, name: str) -> FloatArray:
        """Read one parameter as a float32 array, for tables that are computed from it."""
        return self._weights.read_float32(name)

    def copy_array(self, values: NDArray[np.generic], dtype: torch.dtype | None = None) -> Tensor:
        """Copy a computed table to the device; without `dtype` in its own."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, dtype)


def _view_as_tensor(array: NDArray[np.generic]) -> Tensor:
    """View the array's memory as a tensor. torch does not know numpy's bfloat16, so that goes through its bits."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)
