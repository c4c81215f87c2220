"""Values scaled for e4m3: no input of the norm before takes them beyond it, and the encoder computes what it did."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from embedserve_runtime.engines.torch.fused.quantizing import (
    MAX_VALUE,
    FoldedValues,
    compute_output_bounds,
    quantize,
)
from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.engines.torch.parameters import Linear, Normalization
from embedserve_runtime.model.architecture import NormKind
from tests.runtime.engines.test_forms import ATTENTION

WIDTH = 96
FORM = replace(ATTENTION, heads=4, kv_heads=2, head_size=8)
QUERIES, KEYS = 4 * 8, 2 * 8
# Where e4m3 begins to round up to what it does not have.
FIRST_TOO_LARGE = 464.0


def norm_of(kind: NormKind, source: torch.Generator) -> Normalization:
    """Make a norm with a few channels far larger than the others, as trained norms have them."""
    weight = 1 + 0.2 * torch.randn(WIDTH, generator=source)
    weight[:3] *= 30
    bias = None if kind is NormKind.RMS else torch.randn(WIDTH, generator=source)
    return Normalization(kind, 1e-6, weight, bias)


def linear_of(channels: int, depth: int, source: torch.Generator, *, bias: bool) -> Linear:
    weight = torch.randn((channels, depth), generator=source) / depth**0.5
    return Linear(weight, torch.randn(channels, generator=source) if bias else None)


def in_eight_bit(rows: Tensor, kind: EightBit) -> Tensor:
    """Return the rows as products read them."""
    values, scales = quantize(rows, kind)
    return values.float() * scales[:, None]


def furthest(norm: Normalization, weight: Tensor) -> Tensor:
    """Return for each channel the inputs of the norm that take it furthest, to both sides."""
    rows = weight * norm.weight
    if norm.kind is NormKind.LAYER:
        rows = rows - rows.mean(dim=1, keepdim=True)
    return torch.cat([rows, -rows])


@pytest.mark.parametrize("kind", EightBit)
@pytest.mark.parametrize("norm_kind", NormKind)
@pytest.mark.parametrize("seed", range(5))
def test_no_input_of_the_norm_takes_a_column_beyond_its_bound(
    kind: EightBit, norm_kind: NormKind, seed: int
) -> None:
    source = torch.Generator().manual_seed(seed)
    norm = norm_of(norm_kind, source)
    linear = linear_of(24, WIDTH, source, bias=seed % 2 == 0)
    bounds = compute_output_bounds(norm, linear, kind)
    for rows in (
        furthest(norm, linear.weight),
        torch.eye(WIDTH),
        torch.randn((500, WIDTH), generator=source) ** 5,
    ):
        values = Linear(in_eight_bit(linear.weight, kind), linear.bias)(in_eight_bit(norm(rows), kind))
        assert bool((values.abs() <= bounds).all())
    reached = Linear(linear.weight, linear.bias)(norm(furthest(norm, linear.weight))).abs().amax(dim=0)
    assert float((reached / bounds).min()) > 0.5, "the bound is of no use"


def attended(qkv_proj: Linear, rows: Tensor, weights: Tensor) -> Tensor:
    """Averages of the values, (tokens, heads * head size). weights: (heads, tokens, tokens)."""
    values = qkv_proj(rows)[:, QUERIES + KEYS :].view(len(rows), 2, 8)
    of_heads = values.repeat_interleave(2, dim=1)
    return torch.einsum("hqk,khd->qhd", weights, of_heads).flatten(1)


def shifted(linear: Linear, by: Tensor) -> Linear:
    assert linear.bias is not None
    return Linear(linear.weight, linear.bias + by)


@pytest.mark.parametrize("kind", EightBit)
@pytest.mark.parametrize("norm_kind", NormKind)
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_scaled_and_shifted_values_give_the_same_output_and_fit_into_e4m3(
    kind: EightBit, norm_kind: NormKind, bias: bool
) -> None:
    source = torch.Generator().manual_seed(1)
    norm = norm_of(norm_kind, source)
    qkv_proj = linear_of(QUERIES + 2 * KEYS, WIDTH, source, bias=bias)
    output = linear_of(WIDTH, QUERIES, source, bias=bias)
    rows = norm(torch.cat([furthest(norm, qkv_proj.weight), torch.randn((20, WIDTH), generator=source)]))
    # Each query looks at one key nearly alone: averages are as far from each other as values.
    weights = torch.softmax(20 * torch.randn((4, len(rows), len(rows)), generator=source), dim=2)
    want = output(attended(qkv_proj, rows, weights))

    folded = FoldedValues.fold(qkv_proj, output, FORM, norm, kind)
    first = attended(folded.qkv_proj, rows, weights)
    torch.testing.assert_close(folded.output(first), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        folded.qkv_proj(rows)[:, : QUERIES + KEYS], qkv_proj(rows)[:, : QUERIES + KEYS]
    )

    of_qkv, of_output = folded.compute_shifts(first)
    centred = shifted(folded.qkv_proj, of_qkv)
    second = attended(centred, rows, weights)
    torch.testing.assert_close(shifted(folded.output, of_output)(second), want, rtol=1e-4, atol=1e-4)
    means = second.mean(dim=0).view(2, 2, 8).mean(dim=1)
    assert float(means.abs().max()) < 1e-3 * float(second.abs().max())
    for projection in (folded.qkv_proj, centred):
        values = projection(rows)[:, QUERIES + KEYS :].abs().max()
        assert 0.05 * MAX_VALUE[EightBit.FP8] < values < FIRST_TOO_LARGE


def test_no_digit_of_a_weight_in_16_bit_changes() -> None:
    source = torch.Generator().manual_seed(1)
    qkv_proj, output = (
        Linear(weight.weight.bfloat16(), None)
        for weight in (
            linear_of(QUERIES + 2 * KEYS, WIDTH, source, bias=False),
            linear_of(WIDTH, QUERIES, source, bias=False),
        )
    )
    folded = FoldedValues.fold(qkv_proj, output, FORM, norm_of(NormKind.LAYER, source), EightBit.INT8)
    for before, after in ((qkv_proj, folded.qkv_proj), (output, folded.output)):
        (digits, _), (want, _) = torch.frexp(after.weight), torch.frexp(before.weight.float())
        torch.testing.assert_close(digits, want, rtol=0, atol=0)
