"""The product for Hopper against the same in float32, on a GPU: every activation, residual and pair of types, and
numbers of rows that fill no tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.fused.deferred_norm import add_norm_bias
from embedserve_runtime.engines.torch.fused.hopper import (
    Bounds,
    EightBitSides,
    HopperProduct,
    find_hopper_obstacle,
)
from embedserve_runtime.engines.torch.fused.smoothing import SmoothedNorm
from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.engines.torch.parameters import Linear, Normalization
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import NormKind

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

CUDA = torch.device("cuda", 0)
if find_hopper_obstacle(torch.empty(128, 64, dtype=torch.bfloat16, device=CUDA)) is not None:
    pytest.skip("needs a Hopper and Gluon", allow_module_level=True)

from embedserve_runtime.engines.torch.fused.eight_bit_rows import normalize_to_eight_bit  # noqa: E402  needs Triton

E4M3, INT8 = torch.float8_e4m3fn, torch.int8
MAX_VALUES = {E4M3: 448.0, INT8: 127.0}
ACTIVATIONS: dict[int, Callable[[Tensor], Tensor]] = {
    -1: lambda x: x,
    0: functional.gelu,
    1: lambda x: functional.gelu(x, approximate="tanh"),
    2: functional.relu,
    3: functional.silu,
}
# Of the result to its length: what rounding the result to 16 bit or to e4m3 makes of it.
MAX_ERROR_16, MAX_ERROR_E4M3 = 0.004, 0.04


@dataclass(frozen=True, slots=True)
class Operand:
    """values: as the kernel gets them, (rows, depth). wide: what they stand for, float32. scales: of its rows."""

    values: Tensor
    wide: Tensor
    scales: Tensor | None = None

    @classmethod
    def random(cls, rows: int, depth: int, dtype: torch.dtype, seed: int) -> Operand:
        source = torch.Generator(CUDA).manual_seed(seed)
        wide = torch.randn((rows, depth), device=CUDA, generator=source) / depth**0.25
        if dtype not in MAX_VALUES:
            values = wide.to(dtype)
            return cls(values, values.float())
        scales = wide.abs().amax(1) / MAX_VALUES[dtype]
        scaled = wide / scales[:, None]
        values = (scaled.round() if dtype == INT8 else scaled).to(dtype)
        return cls(values, values.float() * scales[:, None], scales)


def result(left: Operand, right: Operand, bias: Tensor | None, kind: int, gated: bool) -> Tensor:
    """Compute the product in float32, of operands that are rounded already."""
    values = left.wide.double() @ right.wide.double().T
    if bias is not None:
        values = values + bias.double()
    if not gated:
        return ACTIVATIONS[kind](values).float()
    gates, ups = values.chunk(2, dim=1)
    return (ACTIVATIONS[kind](gates) * ups).float()


def sides(left: Operand, right: Operand) -> EightBitSides | None:
    if left.scales is None or right.scales is None:
        return None
    return EightBitSides(left.scales, right.scales)


def error(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, E4M3, INT8], ids=str)
@pytest.mark.parametrize("rows", [1, 127, 1000, 20_001])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_any_number_of_rows_gives_the_product_in_float32(dtype: torch.dtype, rows: int, gated: bool) -> None:
    # A depth that ends inside a block, and more tiles than the card has multiprocessors.
    left, right = Operand.random(rows, 208, dtype, 1), Operand.random(640, 208, dtype, 2)
    bias = torch.randn(640, device=CUDA).to(torch.bfloat16)
    product = HopperProduct(right.values, bias, kind=0, gated=gated)
    wide = dtype if dtype == torch.float16 else torch.bfloat16
    # The rows below are not the product's to write.
    out = torch.full((rows + 1, product.columns), 7.0, device=CUDA, dtype=wide)
    product(left.values, out[:rows], eight=sides(left, right))
    assert error(out[:rows], result(left, right, bias, 0, gated)) < MAX_ERROR_16
    assert bool((out[rows] == 7.0).all())


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
def test_every_activation_is_that_of_torch(kind: int, has_bias: bool) -> None:
    left, right = Operand.random(300, 64, torch.bfloat16, 1), Operand.random(128, 64, torch.bfloat16, 2)
    bias = 3 * torch.randn(128, device=CUDA).to(torch.bfloat16) if has_bias else None
    out = torch.empty((300, 128), device=CUDA, dtype=torch.bfloat16)
    HopperProduct(right.values, bias, kind=kind)(left.values, out)
    assert error(out, result(left, right, bias, kind, False)) < MAX_ERROR_16


@pytest.mark.parametrize("dtype", [torch.bfloat16, E4M3, INT8], ids=str)
def test_a_residual_is_added_also_where_the_result_overwrites_it(dtype: torch.dtype) -> None:
    left, right = Operand.random(5000, 1024, dtype, 1), Operand.random(256, 1024, dtype, 2)
    residual = torch.randn((5000, 256), device=CUDA).to(torch.bfloat16)
    want = result(left, right, None, -1, False) + residual.float()
    HopperProduct(right.values, None)(left.values, residual, residual=residual, eight=sides(left, right))
    assert error(residual, want) < MAX_ERROR_16


@pytest.mark.parametrize("rows", [1000, 5000], ids=["few rows", "many rows"])
@pytest.mark.parametrize("adds", [False, True], ids=["alone", "residual"])
def test_rows_without_scales_are_the_numbers_that_they_say(rows: int, adds: bool) -> None:
    from embedserve_runtime.engines.torch.fused.eight_bit import EightBitProduct
    from embedserve_runtime.engines.torch.fused.quantizing import quantize

    source = torch.Generator(CUDA).manual_seed(1)
    left = 8 * torch.randn((rows, 768), device=CUDA, generator=source)
    weight, bias = torch.randn((256, 768), device=CUDA, generator=source), torch.randn(256, device=CUDA)
    residual = torch.randn((rows, 256), device=CUDA).to(torch.bfloat16) if adds else None
    narrow, (values, scales) = left.to(E4M3), quantize(weight, EightBit.FP8)
    want = narrow.float() @ (values.float() * scales[:, None]).T + bias
    product = EightBitProduct(Linear(weight, bias), torch.bfloat16, kind=EightBit.FP8)
    if residual is None:
        assert error(product(narrow), want) < MAX_ERROR_16
    else:
        want += residual.float()
        assert error(product.add_to(narrow, residual), want) < MAX_ERROR_16


@pytest.mark.parametrize("dtype", [torch.bfloat16, E4M3, INT8], ids=str)
@pytest.mark.parametrize("rows", [1, 127, 20_001])
@pytest.mark.parametrize("kind", NormKind)
def test_a_deferred_residual_is_normed_where_it_is_added(
    dtype: torch.dtype, rows: int, kind: NormKind
) -> None:
    left, right = Operand.random(rows, 208, dtype, 1), Operand.random(256, 208, dtype, 2)
    sums = (1.0 + 3.0 * torch.randn((rows, 256), device=CUDA)).to(torch.bfloat16)
    weight, shift, bias = (torch.randn(256, device=CUDA) for _ in range(3))
    norm = Normalization(kind, 1e-6, weight, shift if kind is NormKind.LAYER else None)
    want = result(left, right, bias, -1, False) + norm(sums.float())
    _, residual = normalize_to_eight_bit(sums, SmoothedNorm(norm, norm), EightBit.INT8)
    assert residual.sums is sums
    product = HopperProduct(right.values, add_norm_bias(norm, bias))
    product(left.values, sums, residual=residual, eight=sides(left, right))
    assert error(sums, want) < MAX_ERROR_16


@pytest.mark.parametrize("dtype", [E4M3, INT8], ids=str)
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_a_result_in_e4m3_has_the_scale_of_its_bound_and_stays_within(
    dtype: torch.dtype, gated: bool
) -> None:
    left, right = Operand.random(3001, 256, dtype, 1), Operand.random(512, 256, dtype, 2)
    product = HopperProduct(right.values, None, kind=0, gated=gated)
    longest = 1.13 * float(right.wide.norm(dim=1).max())
    lengths = left.wide.norm(dim=1)
    out = torch.empty((3001, product.columns), device=CUDA, dtype=E4M3)
    scales = torch.empty(3001, device=CUDA)
    assert left.scales is not None
    assert right.scales is not None
    eight = EightBitSides(left.scales, right.scales, lengths, scales, Bounds(longest, 0.0, longest, 0.0))
    product(left.values, out, eight=eight)
    bound = (lengths * longest) ** (2 if gated else 1)
    torch.testing.assert_close(scales, bound / MAX_VALUES[E4M3])
    want = result(left, right, None, 0, gated)
    assert bool((want.abs() <= bound[:, None]).all())
    # Numbers so far below the bound that e4m3 has few digits for them are most of what is lost.
    assert error(out.float() * scales[:, None], want) < MAX_ERROR_E4M3


@pytest.mark.parametrize("dtype", [E4M3, INT8], ids=str)
def test_a_row_whose_bound_float16_has_no_room_for_is_no_number_and_a_tiny_one_is_kept(
    dtype: torch.dtype,
) -> None:
    left, right = Operand.random(300, 256, dtype, 1), Operand.random(256, 256, dtype, 2)
    assert left.scales is not None
    assert right.scales is not None
    left.scales[9] *= 1e-4
    left.wide[9] *= 1e-4
    lengths = left.wide.norm(dim=1)
    lengths[7] = 1e9
    out, scales = torch.empty((300, 256), device=CUDA, dtype=E4M3), torch.empty(300, device=CUDA)
    longest = 1.13 * float(right.wide.norm(dim=1).max())
    eight = EightBitSides(left.scales, right.scales, lengths, scales, Bounds(longest, 0.0, longest, 0.0))
    HopperProduct(right.values, None, kind=0)(left.values, out, eight=eight)
    got, want = out.float() * scales[:, None], result(left, right, None, 0, False)
    assert bool(got[7].isnan().all())
    assert error(got[9], want[9]) < MAX_ERROR_E4M3
    finite = torch.arange(300, device=CUDA) != 7
    assert error(got[finite], want[finite]) < MAX_ERROR_E4M3


@pytest.mark.parametrize("added_rows", [-1, 0, 5])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_few_rows_and_many_give_the_same_product(added_rows: int, gated: bool) -> None:
    from embedserve_runtime.engines.torch.fused import operations

    right = Operand.random(256, 96, torch.bfloat16, 2)
    linear = Linear(right.values, torch.randn(256, device=CUDA).to(torch.bfloat16))
    left = Operand.random(operations.MIN_TOKENS_ON_HOPPER + added_rows, 96, torch.bfloat16, 1)
    got = operations.ActivatedProduct(linear, Activation.GELU, gated)(left.values)
    # The library rounds once more before its activation.
    assert error(got, result(left, right, linear.bias, 0, gated)) < 2 * MAX_ERROR_16
