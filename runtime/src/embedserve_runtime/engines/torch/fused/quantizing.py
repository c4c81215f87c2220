"""Weights in 8 bit, and value columns that attention may write as e4m3.

Attention averages rows of values. Values are a product after a norm, and a norm limits the length of what it gives: so
no value column, and no column of attention's result, is larger than a bound that the weights alone set. Columns that
are scaled by it fit into e4m3 whatever the batch is, and the output product undoes the scales. The bound is some fifty
times what columns usually are, which a floating format can afford.

Much of attention's result is the same for all tokens of all texts, and e4m3 would round that in the same direction
each time. Since weights of attention sum to 1, any constant can be taken from the values and added after the output
product instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.engines.torch.parameters import Linear, Normalization
from embedserve_runtime.model.architecture import Attention

DTYPES = {EightBit.FP8: torch.float8_e4m3fn, EightBit.INT8: torch.int8}
MAX_VALUE = {EightBit.FP8: 448.0, EightBit.INT8: 127.0}
# What rounding to e4m3 changes a number by: a share of it, or where it is larger, of the least digit of all.
E4M3_SHARE, E4M3_LEAST = 2.0**-4, 2.0**-10


def quantize(weight: Tensor, kind: EightBit) -> tuple[Tensor, Tensor]:
    """Quantize a weight to 8 bit (channels, depth), with float32 scales (channels,)."""
    wide = weight.float()
    scales = wide.abs().amax(dim=1).clamp(min=1e-12) / MAX_VALUE[kind]
    scaled = wide / scales[:, None]
    return (scaled.round() if kind is EightBit.INT8 else scaled).to(DTYPES[kind]), scales


def compute_output_bounds(norm: Normalization, linear: Linear, kind: EightBit) -> Tensor:
    """Compute an upper bound of each column of `linear`, in 8 bit with rows of `norm` in 8 bit: float32 (channels,)."""
    values, scales = quantize(linear.weight, kind)
    weight = values.float() * scales[:, None]
    # A normed row, before the norm's weight, is no longer than the root of its width.
    spread = math.sqrt(weight.shape[1]) * norm.weight.abs()
    shift = torch.zeros_like(spread) if norm.bias is None else norm.bias
    along = (weight * spread).square().sum(dim=1).sqrt()
    constant = weight @ shift
    if linear.bias is not None:
        constant += linear.bias.float()
    bound = along + constant.abs()
    step = (spread + shift.abs()).max() / MAX_VALUE[kind]  # of the largest row there can be
    taxicab = weight.abs().sum(dim=1)
    if kind is EightBit.INT8:
        return bound + step / 2 * taxicab
    return bound + E4M3_SHARE * (along + weight.abs() @ shift.abs()) + E4M3_LEAST * step * taxicab


@dataclass(frozen=True, slots=True, eq=False)
class FoldedValues:
    """Weights with the values rescaled so that 8 bit can hold the result of attention.

    qkv_proj: queries, keys and values; values are scaled so that the result of attention is within e4m3. output: the
    product of that result. Both in float32 (float16 might have no room for a scaled weight), with a bias each.
    """

    qkv_proj: Linear
    output: Linear
    attention: Attention

    @classmethod
    def fold(
        cls, qkv_proj: Linear, output: Linear, attention: Attention, norm: Normalization, kind: EightBit
    ) -> FoldedValues:
        """Fold the scales into the weights. kind: of the fused QKV product, which gets rows of `norm`."""
        width = attention.kv_heads * attention.head_size
        value_proj = Linear(
            qkv_proj.weight[-width:], None if qkv_proj.bias is None else qkv_proj.bias[-width:]
        )
        bounds = compute_output_bounds(norm, value_proj, kind).clamp(min=1e-12)
        # Less their mean they may be twice as large. Powers of two: no digit changes in 16 bit. Its rounding may exceed
        # the bound, by less than what e4m3 rounds down to its largest number.
        factors = torch.exp2(torch.floor(torch.log2(MAX_VALUE[EightBit.FP8] / (2.0 * bounds))))
        row_factors = torch.cat([factors.new_ones(len(qkv_proj.weight) - width), factors])
        column_factors = _repeat_for_query_heads(factors, attention)
        return cls(
            Linear(qkv_proj.weight.float() * row_factors[:, None], _get_bias(qkv_proj) * row_factors),
            Linear(output.weight.float() / column_factors, _get_bias(output)),
            attention,
        )

    def compute_shifts(self, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Compute what to add to both biases so that values have no mean while the output stays the same.

        attended: results of attention, (tokens, heads * head size).
        """
        form = self.attention
        attended_heads = attended.float().mean(dim=0).view(form.kv_heads, -1, form.head_size)
        means = attended_heads.mean(dim=1).flatten()
        before = means.new_zeros(len(self.qkv_proj.weight) - len(means))
        return torch.cat([before, -means]), self.output.weight @ _repeat_for_query_heads(means, form)


def _repeat_for_query_heads(values: Tensor, attention: Attention) -> Tensor:
    """Repeat the number of each value column for the columns of attention's result."""
    group = attention.heads // attention.kv_heads
    return values.view(attention.kv_heads, -1).repeat_interleave(group, dim=0).flatten()


def _get_bias(linear: Linear) -> Tensor:
    if linear.bias is None:
        return torch.zeros(len(linear.weight), device=linear.weight.device)
    return linear.bias.float()
