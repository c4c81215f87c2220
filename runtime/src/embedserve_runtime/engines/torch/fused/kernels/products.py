"""A matrix product of many rows with bias and activation in its epilogue, on the tensor memory accelerator (Hopper and
later). It is persistent: a program walks over tiles, so that the epilogue of one overlaps the loads of the next.
"""

import triton
import triton.language as tl

from embedserve_runtime.engines.torch.fused.kernels.rows import apply_activation


@triton.jit
def product_activated(
    left,  # descriptor of (rows, depth)
    right,  # descriptor of (columns, depth); where GATED, gate rows before up rows: (2 * columns, depth)
    bias,  # read where HAS_BIAS
    out,  # (rows, columns)
    rows,
    columns,
    depth,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KIND: tl.constexpr,  # of `apply_activation`; -1 for none
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
        column_indices = column + tl.arange(0, BLOCK_N)
        inside = column_indices < columns
        if HAS_BIAS:
            sums += tl.load(bias + column_indices, mask=inside, other=0.0).to(tl.float32)[None, :]
        if KIND >= 0:
            sums = apply_activation(sums, KIND)
        if GATED:
            if HAS_BIAS:
                ups += tl.load(bias + columns + column_indices, mask=inside, other=0.0).to(tl.float32)[
                    None, :
                ]
            sums *= ups
        row_indices = row + tl.arange(0, BLOCK_M)
        at = row_indices[:, None].to(tl.int64) * columns + column_indices[None, :]
        tl.store(
            out + at, sums.to(out.dtype.element_ty), mask=(row_indices < rows)[:, None] & inside[None, :]
        )
