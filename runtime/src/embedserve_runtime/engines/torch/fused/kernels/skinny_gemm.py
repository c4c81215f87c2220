"""A matrix product of few rows, which is bound by reading the weights once and by what has to be waited for.

Narrow tiles spread the weights over the card, and the warps of a program split the depth, since so few rows and columns
would give each warp a long chain of steps. No norm is a kernel of its own: who writes sums also writes the moments of
each of its tiles. Who multiplies their norm multiplies the sums, so that nothing waits for the moments, and norms the
product: with the norm's scale g and shift h,
    W (g (x - mean) factor + h) = factor (W (g x) - mean W g) + W h.
"""

import triton
import triton.language as tl

from embedserve_runtime.engines.torch.fused.kernels.rows import apply_activation

# Columns of a tile of sums, of which moments are kept.
SUM_COLUMNS = tl.constexpr(16)
# Parts of the depth, one a warp.
SPLITS = tl.constexpr(4)


@triton.jit
def _load_tile_moments(moments, width, BLOCK_M: tl.constexpr, BLOCK_TILES: tl.constexpr):
    """Load the mean, and the sum of squares about it, of each tile of each row; 0 where there is none."""
    tiles = tl.cdiv(width, SUM_COLUMNS)
    tile_indices = tl.arange(0, BLOCK_TILES)
    at = tile_indices[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    tile_mask = (tile_indices < tiles)[:, None]
    means = tl.load(moments + at, mask=tile_mask, other=0.0)
    return means, tl.load(moments + tiles * BLOCK_M + at, mask=tile_mask, other=0.0)


@triton.jit
def _mean_and_factor(means, squares, width, eps, BLOCK_TILES: tl.constexpr):
    """Return mean and 1 / deviation of rows of `width` columns, from the moments of their tiles.

    Source: Chan, Golub and LeVeque 1983.
    """
    remaining = width - tl.arange(0, BLOCK_TILES) * SUM_COLUMNS
    counts = tl.maximum(tl.minimum(remaining, SUM_COLUMNS), 0).to(tl.float32)[:, None]
    mean = tl.sum(means * counts, 0) / width
    deviations = means - mean[None, :]
    variance = tl.sum(squares + counts * deviations * deviations, 0) / width
    return mean, 1.0 / tl.sqrt(variance + eps)


@triton.jit
def _write_moments(values, column_mask, moments, tile, tiles, BLOCK_M: tl.constexpr):
    """Store mean, and sum of squares about it, of each row of a tile (BLOCK_M, columns)."""
    count = tl.sum(column_mask.to(tl.float32), 0)
    mean = tl.sum(tl.where(column_mask[None, :], values, 0.0), 1) / count
    deviations = tl.where(column_mask[None, :], values - mean[:, None], 0.0)
    at = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    tl.store(moments + at, mean)
    tl.store(moments + tiles * BLOCK_M + at, tl.sum(deviations * deviations, 1))


@triton.jit(do_not_specialize=["rows"])
def skinny_product(
    values,  # (rows, depth); where NORMED sums, of which the norm is meant
    moments,  # float32 (2, tiles of values, BLOCK_M), read where NORMED
    scale,  # float32 (depth,), of the norm, read where NORMED
    mean_coefficients,  # float32 (columns,), weight times scale, read where NORMED
    weight,  # (columns, depth)
    bias,  # (columns,), read where HAS_BIAS; where NORMED with weight shift in it
    add,  # (rows, columns), read where ADD; 2: sums, of which the norm is meant
    add_moments,  # as above, of `add`; read where ADD is 2, like the next two
    add_scale,
    add_shift,
    out,  # (rows, columns); may be `add`
    out_moments,  # float32 (2, tiles of out, BLOCK_M), written where SUMS
    rows,
    columns,
    depth,
    eps,
    add_eps,
    NORMED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADD: tl.constexpr,
    SUMS: tl.constexpr,  # then BLOCK_N is SUM_COLUMNS
    KIND: tl.constexpr,  # of `apply_activation`; -1 for none
    BLOCK_M: tl.constexpr,  # all rows
    BLOCK_N: tl.constexpr,
    SPLIT_DEPTH: tl.constexpr,  # of a warp's part of a step
    BLOCK_TILES: tl.constexpr,  # of a row of values, or the next power of 2
    ADD_TILES: tl.constexpr,
):
    """out = activation(values weight^T + bias) (+ add)."""
    tile = tl.program_id(0)
    column_indices = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row_indices = tl.arange(0, BLOCK_M)
    row_mask, column_mask = row_indices < rows, column_indices < columns
    stored_mask = row_mask[:, None] & column_mask[None, :]
    at = row_indices[:, None] * columns + column_indices[None, :]
    # What the end needs is asked for first, and waited for there: a read takes as long as a step.
    if HAS_BIAS:
        biases = tl.load(bias + column_indices, mask=column_mask, other=0.0).to(tl.float32)
    if NORMED:
        loaded_coefficients = tl.load(mean_coefficients + column_indices, mask=column_mask, other=0.0)
        means, squares = _load_tile_moments(moments, depth, BLOCK_M, BLOCK_TILES)
    if ADD:
        addend = tl.load(add + at, mask=stored_mask, other=0.0).to(tl.float32)
    if ADD == 2:
        addend_scale = tl.load(add_scale + column_indices, mask=column_mask, other=0.0)
        addend_shift = tl.load(add_shift + column_indices, mask=column_mask, other=0.0)
        add_means, add_squares = _load_tile_moments(add_moments, columns, BLOCK_M, ADD_TILES)
    partial_sums = tl.zeros([SPLITS, BLOCK_M, BLOCK_N], tl.float32)
    depths = tl.arange(0, SPLITS)[:, None] * SPLIT_DEPTH + tl.arange(0, SPLIT_DEPTH)[None, :]
    for begin in range(0, depth, SPLITS * SPLIT_DEPTH):
        k = begin + depths
        within = k < depth
        rights = weight + column_indices[None, None, :].to(tl.int64) * depth + k[:, :, None]
        right = tl.load(rights, mask=within[:, :, None] & column_mask[None, None, :], other=0.0)
        lefts = values + row_indices[None, :, None] * depth + k[:, None, :]
        left = tl.load(lefts, mask=row_mask[None, :, None] & within[:, None, :], other=0.0)
        if NORMED:
            scales = tl.load(scale + k, mask=within, other=0.0)
            left = (left.to(tl.float32) * scales[:, None, :]).to(right.dtype)
        partial_sums = tl.dot(left, right, partial_sums)
    sums = tl.sum(partial_sums, 0)
    if NORMED:
        mean, factor = _mean_and_factor(means, squares, depth, eps, BLOCK_TILES)
        sums = (sums - mean[:, None] * loaded_coefficients[None, :]) * factor[:, None]
    if HAS_BIAS:
        sums += biases[None, :]
    if KIND >= 0:
        sums = apply_activation(sums, KIND)
    if ADD == 2:
        add_mean, add_factor = _mean_and_factor(add_means, add_squares, columns, add_eps, ADD_TILES)
        addend = (addend - add_mean[:, None]) * add_factor[:, None]
        addend = addend * addend_scale[None, :] + addend_shift[None, :]
    if ADD:
        sums += addend
    stored = sums.to(out.dtype.element_ty)
    tl.store(out + at, stored, mask=stored_mask)
    if SUMS:
        # Of what is kept, so that the norm does not see digits that the sums have lost.
        _write_moments(
            stored.to(tl.float32), column_mask, out_moments, tile, tl.cdiv(columns, BLOCK_N), BLOCK_M
        )
