"""Deferred layer norms: their result is never written; the kernel that adds to it computes it from its parts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embedserve_runtime.engines.torch.parameters import Normalization


@dataclass(frozen=True, slots=True, eq=False)
class DeferredLayerNorm:
    """norm(sums), which is left to the kernel that reads it: (sums * factors + shifts) times the norm's weight, plus
    its bias. sums: (tokens, width). factors, shifts: float32 (tokens,)."""

    sums: Tensor
    factors: Tensor
    shifts: Tensor
    norm: Normalization


def add_norm_bias(norm: Normalization | None, bias: Tensor | None) -> Tensor | None:
    """Return the bias of a product whose residual is deferred: that of the residual's norm is the same for all rows,
    too."""
    if norm is None or norm.bias is None:
        return bias
    return norm.bias if bias is None else bias.float() + norm.bias
