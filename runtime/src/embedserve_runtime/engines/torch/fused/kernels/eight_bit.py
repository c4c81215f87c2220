"""Products of 8-bit operands: rows with a scale each times output channels with a scale each, sums in 32 bit.

Persistent, as the product in 16 bit is. On cards without the tensor memory accelerator Triton makes plain loads of the
descriptors.
"""

import triton
import triton.language as tl

from embedserve_runtime.engines.torch.fused.kernels.rows import apply_activation, to_eight_bit


@triton.jit
def quantize(
    values,  # (rows, width)
    out,
    scales,  # float32 (rows,)
    lengths,  # float32 (rows,), Euclidean
    width,
    EIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = values / scale, a row a program; the largest of a row gets the largest number."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    row_values = tl.load(values + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    _store(row_values, out + row * width + columns, scales + row, lengths + row, inside, EIGHT)


@triton.jit
def _store(values, at, scale, length, inside, EIGHT: tl.constexpr):
    """A row in 8 bit, what to multiply it by, and its length."""
    largest: tl.constexpr = 448.0 if EIGHT == 1 else 127.0
    highest = tl.maximum(tl.max(tl.abs(values), 0), 1e-12)
    tl.store(scale, highest / largest)
    tl.store(length, tl.sqrt(tl.sum(values * values, 0)))
    tl.store(at, to_eight_bit(values * (largest / highest), EIGHT), mask=inside)


@triton.jit
def add_norm(
    branch,
    residual,  # read where ADD
    residual_factors,  # float32 (rows,), read where DEFERRED
    residual_shifts,  # likewise
    residual_weight,  # float32 (width,), likewise
    residual_bias,  # likewise, read where DEFERRED_BIAS
    weight,
    bias,  # read where BIAS
    total,  # (rows, width), written where ADD; may be an input
    eight,  # (rows, width)
    scales,  # float32 (rows,)
    lengths,  # float32 (rows,), Euclidean, of what is in `eight`
    factors,  # float32 (rows,): the norm is (total * factor + shift) * weight + bias
    shifts,
    rows,
    width,
    eps,
    ADD: tl.constexpr,  # total = residual + branch, else the branch alone
    DEFERRED: tl.constexpr,  # the residual is (residual * factor + shift) * weight + bias
    DEFERRED_BIAS: tl.constexpr,
    RMS: tl.constexpr,
    BIAS: tl.constexpr,
    EIGHT: tl.constexpr,  # 1: e4m3, 2: int8
    BLOCK: tl.constexpr,
):
    """eight = norm(total), in 8 bit, and what it takes to compute the norm again. A program keeps the weights for all
    of its rows, and asks for the next row before it computes one."""
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    weights = tl.load(weight + columns, mask=inside, other=0.0)
    if BIAS:
        biases = tl.load(bias + columns, mask=inside, other=0.0)
    if DEFERRED:
        residual_weights = tl.load(residual_weight + columns, mask=inside, other=0.0)
    at = tl.program_id(0).to(tl.int64) * width + columns
    # What is read makes room in the cache first: by the time anything reads the sums again they are gone anyway.
    branches = tl.load(branch + at, mask=inside, other=0.0, eviction_policy="evict_first")
    if ADD:
        residuals = tl.load(residual + at, mask=inside, other=0.0, eviction_policy="evict_first")
    step = tl.num_programs(0)
    for row in range(tl.program_id(0), rows, step):
        values = branches.to(tl.float32)
        later = at + step.to(tl.int64) * width
        within = columns < tl.where(row + step < rows, width, 0)
        branches = tl.load(branch + later, mask=within, other=0.0, eviction_policy="evict_first")
        if ADD:
            added = residuals.to(tl.float32)
            residuals = tl.load(residual + later, mask=within, other=0.0, eviction_policy="evict_first")
            if DEFERRED:
                added = added * tl.load(residual_factors + row) + tl.load(residual_shifts + row)
                added *= residual_weights
                if DEFERRED_BIAS:
                    added += tl.load(residual_bias + columns, mask=inside, other=0.0)
            # Of what is kept, so that the norm does not see digits that the residual has lost.
            sums = (values + added).to(total.dtype.element_ty)
            tl.store(total + at, sums, mask=inside)
            values = sums.to(tl.float32)
        mean = 0.0
        if not RMS:
            mean = tl.sum(values, 0) / width
            values = tl.where(inside, values - mean, 0.0)
        factor = 1.0 / tl.sqrt(tl.sum(values * values, 0) / width + eps)
        values = values * factor * weights
        if BIAS:
            values += biases
        tl.store(factors + row, factor)
        tl.store(shifts + row, -mean * factor)
        _store(values, eight + at, scales + row, lengths + row, inside, EIGHT)
        at = later


@triton.jit
def product(
    left,  # descriptor of (rows, depth)
    right,  # descriptor of (columns, depth); where GATED, gate rows before up rows: (2 * columns, depth)
    left_scales,  # float32 (rows,), read where SCALED_ROWS
    right_scales,  # float32 (columns,)
    bias,  # read where HAS_BIAS
    add,  # (rows, columns), read where ADD
    lengths,  # float32 (rows,), Euclidean, of the rows of `left`, read where QUANTIZED_OUT
    factors,  # float32 (rows,), read where DEFERRED
    shifts,  # likewise
    norm_weight,  # float32 (columns,), likewise
    out,  # (rows, columns), may be `add`
    out_scales,  # float32 (rows,), written where QUANTIZED_OUT
    rows,
    columns,
    depth,
    weight_bound,  # no gate or plain column is longer than this
    bias_bound,
    up_weight_bound,
    up_bias_bound,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KIND: tl.constexpr,  # of `apply_activation`; -1 for none
    ADD: tl.constexpr,
    DEFERRED: tl.constexpr,  # what is added is (add * factor + shift) * norm_weight
    QUANTIZED_OUT: tl.constexpr,  # write e4m3, with a scale by the bound that the lengths set
    INTEGER: tl.constexpr,
    SCALED_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """out = activation(left right^T + bias) (+ add), or activation(gate) * up."""
    tiles_m, tiles_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    steps = tl.cdiv(depth, BLOCK_K)
    kind: tl.constexpr = tl.int32 if INTEGER else tl.float32
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=FLATTEN):
        group = tile // (GROUP_M * tiles_n)
        height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
        row = (group * GROUP_M + tile % (GROUP_M * tiles_n) % height) * BLOCK_M
        column = tile % (GROUP_M * tiles_n) // height * BLOCK_N
        sums = tl.zeros([BLOCK_M, BLOCK_N], kind)
        if GATED:
            ups = tl.zeros([BLOCK_M, BLOCK_N], kind)
        for step in range(steps):
            lefts = left.load([row, step * BLOCK_K])
            sums = tl.dot(lefts, right.load([column, step * BLOCK_K]).T, sums, out_dtype=kind)
            if GATED:
                ups = tl.dot(lefts, right.load([columns + column, step * BLOCK_K]).T, ups, out_dtype=kind)
        column_indices, row_indices = column + tl.arange(0, BLOCK_N), row + tl.arange(0, BLOCK_M)
        inside, real = column_indices < columns, row_indices < rows
        values = sums.to(tl.float32)
        if SCALED_ROWS:
            scale = tl.load(left_scales + row_indices, mask=real, other=0.0)[:, None]
            values *= scale
        values *= tl.load(right_scales + column_indices, mask=inside, other=0.0)[None, :]
        if HAS_BIAS:
            values += tl.load(bias + column_indices, mask=inside, other=0.0).to(tl.float32)[None, :]
        if KIND >= 0:
            values = apply_activation(values, KIND)
        if GATED:
            up_scales = tl.load(right_scales + columns + column_indices, mask=inside, other=0.0)[None, :]
            up = ups.to(tl.float32) * up_scales
            if SCALED_ROWS:
                up *= scale
            if HAS_BIAS:
                up += tl.load(bias + columns + column_indices, mask=inside, other=0.0).to(tl.float32)[None, :]
            values *= up
        at = row_indices[:, None].to(tl.int64) * columns + column_indices[None, :]
        within = real[:, None] & inside[None, :]
        if ADD:
            residual = tl.load(add + at, mask=within, other=0.0).to(tl.float32)
            if DEFERRED:
                residual *= tl.load(factors + row_indices, mask=real, other=0.0)[:, None]
                residual += tl.load(shifts + row_indices, mask=real, other=0.0)[:, None]
                residual *= tl.load(norm_weight + column_indices, mask=inside, other=0.0)[None, :]
            values += residual
        if QUANTIZED_OUT:
            length = tl.load(lengths + row_indices, mask=real, other=0.0)
            bound = length * weight_bound + bias_bound
            if GATED:
                bound *= length * up_weight_bound + up_bias_bound
            bound = tl.maximum(bound, 1e-12)
            if column == 0:
                tl.store(out_scales + row_indices, bound / 448.0, mask=real)
            tl.store(out + at, to_eight_bit(values * (448.0 / bound)[:, None], 1), mask=within)
        else:
            tl.store(out + at, values.to(out.dtype.element_ty), mask=within)
