"""Layers whose products run in 8 bit. All else is as in 16 bit.

Norms give 8 bit alone: where they come after the branches, the kernel that adds to the residual computes its norm
again. Where the device has e4m3 and a norm limits the values, attention writes e4m3 (`quantizing`); elsewhere its
output product is in 16 bit. Rows behind a norm are smoothed where texts have shown their ranges (`smoothing`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embedserve_runtime.engines.torch.fused.deferred_norm import DeferredLayerNorm
from embedserve_runtime.engines.torch.fused.eight_bit import EightBitProduct
from embedserve_runtime.engines.torch.fused.eight_bit_rows import QuantizedRows, normalize_to_eight_bit
from embedserve_runtime.engines.torch.fused.layer import (
    FusedLayer,
    HiddenStates,
    LayerProducts,
    ResidualNorms,
)
from embedserve_runtime.engines.torch.fused.smoothing import SmoothedNorm
from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.engines.torch.parameters import Linear

Hidden8 = HiddenStates[QuantizedRows, Tensor | DeferredLayerNorm]
Layer8 = FusedLayer[Hidden8, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class EightBitProducts(LayerProducts[Hidden8, Tensor]):
    """Products in 8 bit; that of attention's result is in 16 bit where attention does not write e4m3.

    inner_kind: of what the down product reads. adds_residual: whether 8-bit products that end a branch add the
    residual.
    """

    qkv_proj: EightBitProduct
    output: Linear | EightBitProduct
    up: EightBitProduct
    down: EightBitProduct
    inner_kind: EightBit
    adds_residual: bool

    def project_qkv(self, hidden: Hidden8) -> Tensor:
        return self.qkv_proj(hidden.rows)

    def project_output(self, attended: Tensor, hidden: Hidden8) -> Tensor:
        if self.adds_residual and isinstance(self.output, EightBitProduct):
            return self.output.add_to(attended, hidden.residual)
        return self.output(attended)

    def compute_mlp(self, hidden: Hidden8) -> Tensor:
        inner = self.up.multiply_to_eight_bit(hidden.rows, self.inner_kind)
        return self.down.add_to(inner, hidden.residual) if self.adds_residual else self.down(inner)


@dataclass(frozen=True, slots=True, eq=False)
class EightBitPostNorms(ResidualNorms[Hidden8, Tensor]):
    """Norms after the branches, in 8 bit and deferred.

    mlp: read by the next layer, which it is smoothed for; None in the last one. output_adds: whether the output product
    has added the residual.
    """

    attention: SmoothedNorm
    mlp: SmoothedNorm | None
    kind: EightBit
    output_adds: bool

    def normalize_after_attention(self, branch: Tensor, hidden: Hidden8) -> Hidden8:
        residual = None if self.output_adds else hidden.residual
        return HiddenStates(*normalize_to_eight_bit(branch, self.attention, self.kind, residual=residual))

    def normalize_after_mlp(self, branch: Tensor, _: Hidden8) -> Hidden8:
        assert self.mlp is not None  # `LastLayer` ends the last layer
        return HiddenStates(*normalize_to_eight_bit(branch, self.mlp, self.kind))


@dataclass(frozen=True, slots=True, eq=False)
class EightBitPreNorms(ResidualNorms[Hidden8, Tensor]):
    """Norms before the branches, in 8 bit; the residual is float32.

    following: the norm that the next layer begins with; None in the last one.
    """

    mlp: SmoothedNorm
    following: SmoothedNorm | None
    kind: EightBit

    def normalize_after_attention(self, branch: Tensor, hidden: Hidden8) -> Hidden8:
        return add_and_norm(branch, hidden, self.mlp, self.kind)

    def normalize_after_mlp(self, branch: Tensor, hidden: Hidden8) -> Hidden8:
        assert self.following is not None  # `LastLayer` ends the last layer
        return add_and_norm(branch, hidden, self.following, self.kind)


def add_and_norm(branch: Tensor, hidden: Hidden8, norm: SmoothedNorm, kind: EightBit) -> Hidden8:
    """Add the branch to the residual, in place; the rows are the norm of that."""
    residual = hidden.residual
    assert isinstance(residual, Tensor)  # no norm is deferred
    rows, _ = normalize_to_eight_bit(branch, norm, kind, residual=residual, keep=residual)
    return HiddenStates(rows, residual)
