"""Matrix products with bias and activation in their epilogue: of many rows on the tensor memory accelerator (Hopper and
later), and of few.

That of many is persistent: a program walks over tiles, so that the epilogue of one tile runs beside the loads of the
next. That of few is bound by reading the weights once, which narrow tiles spread over the card.
"""

import triton
import triton.language as tl

from embedserve_runtime.engines.torch.fused.kernels.rows import activated


@triton.jit
def product_activated(
    left,  # descriptor of (rows, depth)
    right,  # descriptor of (columns, depth); where GATED, gate rows before up rows: (2 * columns, depth)
    bias,
    out,  # (rows, columns)
    rows,
    columns,
    depth,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KIND: tl.constexpr,  # of `activated`; -1 for none
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """out = activation(left right^T + bias), or activation(gate) * up."""
    tiles_m, tiles_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    steps = tl.cdiv(depth, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=FLATTEN):
        group = tile // (GROUP_M * tiles_n)
        height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
        row = (group * GROUP_M + tile % (GROUP_M * tiles_n) % height) * BLOCK_M
        column = tile % (GROUP_M * tiles_n) // height * BLOCK_N
        sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        if GATED:
            ups = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for step in range(steps):
            lefts = left.load([row, step * BLOCK_K])
            sums = tl.dot(lefts, right.load([column, step * BLOCK_K]).T, sums)
            if GATED:
                ups = tl.dot(lefts, right.load([columns + column, step * BLOCK_K]).T, ups)
        places = column + tl.arange(0, BLOCK_N)
        inside = places < columns
        if HAS_BIAS:
            sums += tl.load(bias + places, mask=inside, other=0.0).to(tl.float32)[None, :]
        if KIND >= 0:
            sums = activated(sums, KIND)
        if GATED:
            if HAS_BIAS:
                ups += tl.load(bias + columns + places, mask=inside, other=0.0).to(tl.float32)[None, :]
            sums *= ups
        below = row + tl.arange(0, BLOCK_M)
        at = below[:, None].to(tl.int64) * columns + places[None, :]
        tl.store(out + at, sums.to(out.dtype.element_ty), mask=(below < rows)[:, None] & inside[None, :])


@triton.jit
def product_few(
    values,  # (rows, depth)
    weight,  # (columns, depth)
    bias,
    add,  # (rows, columns)
    out,  # (rows, columns); may be `add`
    rows,
    columns,
    depth,
    HAS_BIAS: tl.constexpr,
    ADD: tl.constexpr,
    KIND: tl.constexpr,  # of `activated`; -1 for none
    BLOCK_M: tl.constexpr,  # all rows
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out = activation(values weight^T + bias) (+ add)."""
    places = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    below = tl.arange(0, BLOCK_M)
    depths = tl.arange(0, BLOCK_K)
    real, inside = below < rows, places < columns
    lefts = values + below[:, None] * depth + depths[None, :]
    rights = weight + places[None, :].to(tl.int64) * depth + depths[:, None]
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(0, depth, BLOCK_K):
        within = begin + depths < depth
        left = tl.load(lefts + begin, mask=real[:, None] & within[None, :], other=0.0)
        right = tl.load(rights + begin, mask=within[:, None] & inside[None, :], other=0.0)
        sums = tl.dot(left, right, sums)
    if HAS_BIAS:
        sums += tl.load(bias + places, mask=inside, other=0.0).to(tl.float32)[None, :]
    if KIND >= 0:
        sums = activated(sums, KIND)
    at = below[:, None].to(tl.int64) * columns + places[None, :]
    shown = real[:, None] & inside[None, :]
    if ADD:
        sums += tl.load(add + at, mask=shown, other=0.0).to(tl.float32)
    tl.store(out + at, sums.to(out.dtype.element_ty), mask=shown)
