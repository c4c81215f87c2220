"""All layers of an encoder in one kernel, for few tokens: what a kernel a product costs most in is starting it.

The programs are as many as run side by side. Each phase of a layer (queries, keys and values; attention; output; up;
down) is split into tiles over them, and they meet before the next. While they compute, each asks for the weights that
it reads later in the layer. A norm is never a phase of its own: who writes the sums also writes the moments of each of
its tiles, and who reads the sums norms them on the way.
"""

import triton
import triton.language as tl

from embedserve_runtime.engines.torch.fused.kernels.attention import FLOOR
from embedserve_runtime.engines.torch.fused.kernels.rows import INTERPRETED, activated

# Columns of the sums that one tile writes, and of which it keeps the moments.
SUM_COLUMNS = tl.constexpr(16)
# Columns of a tile of the other products.
WIDE_COLUMNS = tl.constexpr(32)
# A product's depth is split over warps, since so few rows and columns give each warp a long chain of steps.
SPLITS = tl.constexpr(8)
SPLIT_DEPTH = tl.constexpr(32)

# Addresses in a row of the table.
QKV_WEIGHT = tl.constexpr(0)
QKV_BIAS = tl.constexpr(1)
OUTPUT_WEIGHT = tl.constexpr(2)
OUTPUT_BIAS = tl.constexpr(3)
UP_WEIGHT = tl.constexpr(4)
UP_BIAS = tl.constexpr(5)
DOWN_WEIGHT = tl.constexpr(6)
DOWN_BIAS = tl.constexpr(7)
FIRST_NORM_WEIGHT = tl.constexpr(8)
FIRST_NORM_BIAS = tl.constexpr(9)
SECOND_NORM_WEIGHT = tl.constexpr(10)
SECOND_NORM_BIAS = tl.constexpr(11)
ADDRESSES = tl.constexpr(12)


@triton.jit
def _address(row, number: tl.constexpr, dtype: tl.constexpr):
    return tl.multiple_of(tl.load(row + number).to(tl.pointer_type(dtype)), 16)


@triton.jit
def _meet(arrived, PROGRAMS: tl.constexpr):
    """Wait until all programs are here, and see what they wrote. Every program comes equally often, so the count of all
    arrivals ever says which meeting this is."""
    if PROGRAMS > 1:
        tl.debug_barrier()
        before = tl.atomic_add(arrived, 1, sem="release")
        enough = (before // PROGRAMS + 1) * PROGRAMS
        while tl.atomic_add(arrived, 0, sem="acquire") < enough:
            pass
        tl.debug_barrier()


@triton.jit
def _ask_for(weight, tiles, columns, depth, COLUMNS: tl.constexpr, PROGRAMS: tl.constexpr):
    """Bring this program's rows of a weight of 16 bit into the cache, without waiting."""
    if not INTERPRETED:
        # A line of the cache is 64 numbers.
        lines: tl.constexpr = 16
        for tile in range(tl.program_id(0), tiles, PROGRAMS):
            rows = tile * COLUMNS + tl.arange(0, COLUMNS)
            for begin in range(0, depth, 64 * lines):
                places = begin + 64 * tl.arange(0, lines)
                # What lies outside asks for the first line once more.
                inside = (rows < columns)[:, None] & (places < depth)[None, :]
                at = tl.where(inside, rows[:, None].to(tl.int64) * depth + places[None, :], 0)
                tl.inline_asm_elementwise(
                    "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
                    "=r,l",
                    [weight + at],
                    dtype=tl.int32,
                    is_pure=False,
                    pack=1,
                )


@triton.jit
def _write_moments(values, inside, moments, tile, tiles, BLOCK_M: tl.constexpr):
    """Of a tile (BLOCK_M, columns): mean, and sum of squares about it, of each row. moments: (2, tiles, BLOCK_M)."""
    count = tl.sum(inside.to(tl.float32), 0)
    mean = tl.sum(tl.where(inside[None, :], values, 0.0), 1) / count
    away = tl.where(inside[None, :], values - mean[:, None], 0.0)
    at = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    tl.store(moments + at, mean)
    tl.store(moments + tiles * BLOCK_M + at, tl.sum(away * away, 1))


@triton.jit
def _mean_and_factor(moments, tiles, hidden, eps, BLOCK_M: tl.constexpr, BLOCK_TILES: tl.constexpr):
    """Of whole rows, from the moments of their tiles (Chan, Golub and LeVeque 1983)."""
    each = tl.arange(0, BLOCK_TILES)
    at = each[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    real = (each < tiles)[:, None]
    means = tl.load(moments + at, mask=real, other=0.0)
    squares = tl.load(moments + tiles * BLOCK_M + at, mask=real, other=0.0)
    counts = tl.maximum(tl.minimum(hidden - each * SUM_COLUMNS, SUM_COLUMNS), 0).to(tl.float32)[:, None]
    mean = tl.sum(means * counts, 0) / hidden
    away = means - mean[None, :]
    variance = tl.sum(squares + counts * away * away, 0) / hidden
    return mean, 1.0 / tl.sqrt(variance + eps)


@triton.jit
def _normed_at(sums, rows, real, columns, inside, hidden, mean, factor, weight, bias):
    """Rows x columns of the norm of sums (rows, hidden), float32, 0 outside."""
    at = rows[:, None] * hidden + columns[None, :]
    values = tl.load(sums + at, mask=real[:, None] & inside[None, :], other=0.0)
    weights = tl.load(weight + columns, mask=inside, other=0.0)
    biases = tl.load(bias + columns, mask=inside, other=0.0)
    return (values - mean[:, None]) * factor[:, None] * weights[None, :] + biases[None, :]


@triton.jit
def _product_of_normed(
    sums, weight, columns, inside, rows, real, hidden, mean, factor, norm_weight, norm_bias,
    BLOCK_M: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """norm(sums) weight^T at some columns, (BLOCK_M, COLUMNS), float32."""
    step: tl.constexpr = SPLITS * SPLIT_DEPTH
    parts = tl.zeros([SPLITS, BLOCK_M, COLUMNS], tl.float32)
    depths = tl.arange(0, SPLITS)[:, None] * SPLIT_DEPTH + tl.arange(0, SPLIT_DEPTH)[None, :]
    for begin in range(0, hidden, step):
        places = begin + depths
        within = places < hidden
        at = rows[None, :, None] * hidden + places[:, None, :]
        values = tl.load(sums + at, mask=real[None, :, None] & within[:, None, :], other=0.0)
        weights = tl.load(norm_weight + places, mask=within, other=0.0)
        biases = tl.load(norm_bias + places, mask=within, other=0.0)
        values = (values - mean[None, :, None]) * factor[None, :, None]
        values = values * weights[:, None, :] + biases[:, None, :]
        rights = weight + columns[None, None, :].to(tl.int64) * hidden + places[:, :, None]
        right = tl.load(rights, mask=within[:, :, None] & inside[None, None, :], other=0.0)
        parts = tl.dot(values.to(right.dtype), right, parts)
    return tl.sum(parts, 0)


@triton.jit
def _product(
    values, weight, columns, inside, rows, real, depth, BLOCK_M: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """values weight^T at some columns, (BLOCK_M, COLUMNS), float32."""
    step: tl.constexpr = SPLITS * SPLIT_DEPTH
    parts = tl.zeros([SPLITS, BLOCK_M, COLUMNS], tl.float32)
    depths = tl.arange(0, SPLITS)[:, None] * SPLIT_DEPTH + tl.arange(0, SPLIT_DEPTH)[None, :]
    for begin in range(0, depth, step):
        places = begin + depths
        within = places < depth
        at = rows[None, :, None] * depth + places[:, None, :]
        left = tl.load(values + at, mask=real[None, :, None] & within[:, None, :], other=0.0)
        rights = weight + columns[None, None, :].to(tl.int64) * depth + places[:, :, None]
        right = tl.load(rights, mask=within[:, :, None] & inside[None, None, :], other=0.0)
        parts = tl.dot(left, right, parts)
    return tl.sum(parts, 0)


@triton.jit
def _attend(
    joint, context, starts, ends, head, rows, real, width, scale,
    HEAD_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One head of all tokens at once. joint: (tokens, 3 * width). A row that is none sees all keys, and is not kept."""
    log2e: tl.constexpr = 1.4426950408889634
    sizes = tl.arange(0, BLOCK_D)
    loaded = real[:, None] & (sizes < HEAD_SIZE)[None, :]
    at = rows[:, None] * (3 * width) + head * HEAD_SIZE + sizes[None, :]
    queries = tl.load(joint + at, mask=loaded, other=0.0)
    keys = tl.load(joint + width + at, mask=loaded, other=0.0)
    values = tl.load(joint + 2 * width + at, mask=loaded, other=0.0)
    start = tl.load(starts + rows, mask=real, other=0)
    end = tl.load(ends + rows, mask=real, other=BLOCK_M)
    visible = (rows[None, :] >= start[:, None]) & (rows[None, :] < end[:, None])
    scores = tl.where(visible, tl.dot(queries, tl.trans(keys)) * (scale * log2e), FLOOR)
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    totals = tl.dot(weights.to(values.dtype), values) / tl.sum(weights, 1)[:, None]
    at = rows[:, None] * width + head * HEAD_SIZE + sizes[None, :]
    tl.store(context + at, totals.to(context.dtype.element_ty), mask=loaded)


@triton.jit(do_not_specialize=["tokens", "layers"])
def run_layers(
    addresses,  # int64 (layers + 1, ADDRESSES): where the parameters lie; of the last row the first norm alone
    sums,  # float32 (tokens, hidden): what the first norm is of; changed
    between,  # float32 (tokens, hidden): the sums behind attention
    moments,  # float32 (2, 2, tiles, BLOCK_M): of sums, of between
    joint,  # (tokens, 3 * width)
    context,  # (tokens, width)
    inner,  # (tokens, intermediate)
    out,  # (tokens, hidden)
    starts,  # int32 (tokens,): first token of the token's sequence
    ends,  # int32 (tokens,): one past its last
    arrived,  # int64 (1,): of all programs at all meetings ever
    tokens,
    layers,
    scale,
    eps,
    HIDDEN: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    KIND: tl.constexpr,  # of `activated`
    BLOCK_M: tl.constexpr,  # all tokens
    BLOCK_D: tl.constexpr,
    BLOCK_TILES: tl.constexpr,  # of a row of sums, or the next power of 2
    PROGRAMS: tl.constexpr,
):
    """Layers of one form: norms after, plain attention, no gate, biases everywhere."""
    dtype: tl.constexpr = out.dtype.element_ty
    width: tl.constexpr = HEADS * HEAD_SIZE
    sum_tiles: tl.constexpr = (HIDDEN + SUM_COLUMNS - 1) // SUM_COLUMNS
    joint_tiles: tl.constexpr = (3 * width + WIDE_COLUMNS - 1) // WIDE_COLUMNS
    inner_tiles: tl.constexpr = (INTERMEDIATE + WIDE_COLUMNS - 1) // WIDE_COLUMNS
    program = tl.program_id(0)
    rows = tl.arange(0, BLOCK_M)
    real = rows < tokens
    later = moments + 2 * sum_tiles * BLOCK_M

    for tile in range(program, sum_tiles, PROGRAMS):
        columns = tile * SUM_COLUMNS + tl.arange(0, SUM_COLUMNS)
        inside = columns < HIDDEN
        at = rows[:, None] * HIDDEN + columns[None, :]
        values = tl.load(sums + at, mask=real[:, None] & inside[None, :], other=0.0)
        _write_moments(values, inside, moments, tile, sum_tiles, BLOCK_M)
    _ask_for(_address(addresses, QKV_WEIGHT, dtype), joint_tiles, 3 * width, HIDDEN, WIDE_COLUMNS, PROGRAMS)
    _meet(arrived, PROGRAMS)

    for layer in range(layers):
        row = addresses + layer * ADDRESSES
        norm_weight, norm_bias = (
            _address(row, FIRST_NORM_WEIGHT, tl.float32),
            _address(row, FIRST_NORM_BIAS, tl.float32),
        )
        _ask_for(_address(row, OUTPUT_WEIGHT, dtype), sum_tiles, HIDDEN, width, SUM_COLUMNS, PROGRAMS)
        _ask_for(_address(row, UP_WEIGHT, dtype), inner_tiles, INTERMEDIATE, HIDDEN, WIDE_COLUMNS, PROGRAMS)
        _ask_for(_address(row, DOWN_WEIGHT, dtype), sum_tiles, HIDDEN, INTERMEDIATE, SUM_COLUMNS, PROGRAMS)
        mean, factor = _mean_and_factor(moments, sum_tiles, HIDDEN, eps, BLOCK_M, BLOCK_TILES)

        weight, bias = _address(row, QKV_WEIGHT, dtype), _address(row, QKV_BIAS, dtype)
        for tile in range(program, joint_tiles, PROGRAMS):
            columns = tile * WIDE_COLUMNS + tl.arange(0, WIDE_COLUMNS)
            inside = columns < 3 * width
            values = _product_of_normed(
                sums, weight, columns, inside, rows, real, HIDDEN, mean, factor, norm_weight, norm_bias,
                BLOCK_M, WIDE_COLUMNS,
            )  # fmt: skip
            values += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
            at = rows[:, None] * (3 * width) + columns[None, :]
            tl.store(joint + at, values.to(dtype), mask=real[:, None] & inside[None, :])
        _meet(arrived, PROGRAMS)

        for head in range(program, HEADS, PROGRAMS):
            _attend(joint, context, starts, ends, head, rows, real, width, scale, HEAD_SIZE, BLOCK_M, BLOCK_D)
        _meet(arrived, PROGRAMS)

        weight, bias = _address(row, OUTPUT_WEIGHT, dtype), _address(row, OUTPUT_BIAS, dtype)
        for tile in range(program, sum_tiles, PROGRAMS):
            columns = tile * SUM_COLUMNS + tl.arange(0, SUM_COLUMNS)
            inside = columns < HIDDEN
            values = _product(context, weight, columns, inside, rows, real, width, BLOCK_M, SUM_COLUMNS)
            values += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
            values += _normed_at(
                sums, rows, real, columns, inside, HIDDEN, mean, factor, norm_weight, norm_bias
            )
            at = rows[:, None] * HIDDEN + columns[None, :]
            tl.store(between + at, values, mask=real[:, None] & inside[None, :])
            _write_moments(values, inside, later, tile, sum_tiles, BLOCK_M)
        _meet(arrived, PROGRAMS)

        norm_weight, norm_bias = (
            _address(row, SECOND_NORM_WEIGHT, tl.float32),
            _address(row, SECOND_NORM_BIAS, tl.float32),
        )
        mean, factor = _mean_and_factor(later, sum_tiles, HIDDEN, eps, BLOCK_M, BLOCK_TILES)
        if layer + 1 < layers:
            following = _address(row + ADDRESSES, QKV_WEIGHT, dtype)
            _ask_for(following, joint_tiles, 3 * width, HIDDEN, WIDE_COLUMNS, PROGRAMS)
        weight, bias = _address(row, UP_WEIGHT, dtype), _address(row, UP_BIAS, dtype)
        for tile in range(program, inner_tiles, PROGRAMS):
            columns = tile * WIDE_COLUMNS + tl.arange(0, WIDE_COLUMNS)
            inside = columns < INTERMEDIATE
            values = _product_of_normed(
                between, weight, columns, inside, rows, real, HIDDEN, mean, factor, norm_weight, norm_bias,
                BLOCK_M, WIDE_COLUMNS,
            )  # fmt: skip
            values += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
            at = rows[:, None] * INTERMEDIATE + columns[None, :]
            tl.store(inner + at, activated(values, KIND).to(dtype), mask=real[:, None] & inside[None, :])
        _meet(arrived, PROGRAMS)

        weight, bias = _address(row, DOWN_WEIGHT, dtype), _address(row, DOWN_BIAS, dtype)
        for tile in range(program, sum_tiles, PROGRAMS):
            columns = tile * SUM_COLUMNS + tl.arange(0, SUM_COLUMNS)
            inside = columns < HIDDEN
            values = _product(inner, weight, columns, inside, rows, real, INTERMEDIATE, BLOCK_M, SUM_COLUMNS)
            values += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
            values += _normed_at(
                between, rows, real, columns, inside, HIDDEN, mean, factor, norm_weight, norm_bias
            )
            at = rows[:, None] * HIDDEN + columns[None, :]
            tl.store(sums + at, values, mask=real[:, None] & inside[None, :])
            _write_moments(values, inside, moments, tile, sum_tiles, BLOCK_M)
        _meet(arrived, PROGRAMS)

    row = addresses + layers * ADDRESSES
    mean, factor = _mean_and_factor(moments, sum_tiles, HIDDEN, eps, BLOCK_M, BLOCK_TILES)
    for tile in range(program, sum_tiles, PROGRAMS):
        columns = tile * SUM_COLUMNS + tl.arange(0, SUM_COLUMNS)
        inside = columns < HIDDEN
        values = _normed_at(
            sums, rows, real, columns, inside, HIDDEN, mean, factor,
            _address(row, FIRST_NORM_WEIGHT, tl.float32), _address(row, FIRST_NORM_BIAS, tl.float32),
        )  # fmt: skip
        at = rows[:, None] * HIDDEN + columns[None, :]
        tl.store(out + at, values.to(dtype), mask=real[:, None] & inside[None, :])
