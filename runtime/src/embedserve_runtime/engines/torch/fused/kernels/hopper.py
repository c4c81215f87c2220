"""Products with all that follows them in their epilogue, for Hopper, in Gluon: 16 bit, e4m3 or int8.

A program stays on its multiprocessor and has three parts that run concurrently. One warp, the producer, asks the tensor
memory accelerator for the next blocks of both operands, as long as a stage of the pipeline is free. Two consumers of
four warps take turns at tiles of the output: while one multiplies, the other is at the bias, activation and stores of
its own ("ping-pong"). A consumer's turn begins when the other has asked for its last product.
"""

import struct

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from embedserve_runtime.engines.torch.fused.kernels.rows import LOGISTIC

# Triton 3.9 has other names for them.
LOAD = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
STORE = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

ROWS = gl.constexpr(128)
COLUMNS = gl.constexpr(128)
# A tile's columns go through the epilogue in `SUBTILES` subtiles: all at once would not fit in registers.
SUBTILES = gl.constexpr(2)
# Groups of four warps that take turns at multiplying.
CONSUMERS = gl.constexpr(2)
# Of a result whose GELU is in float16: 448 by it is a number of float16.
MIN_FLOAT16_BOUND = gl.constexpr(0.007)
# GELU, by erf, is x * share(x), the share about 1/2 + x (c0 + c1 x^2 + c2 x^4 + ...), never below 0 or above 1. They
# are numbers of float16, found by trying so that the error of GELU in float16 is small: 3e-3 at most, 8e-4 for normal
# x, which rounding to e4m3 changes by 1.7e-2.
GELU_COEFFICIENTS = (
    0.39453125,
    -0.059783935546875,
    0.00670623779296875,
    -0.00041675567626953125,
    1.0728836059570312e-05,
)


def write_packed_gelu() -> str:
    """Write PTX for $0 = GELU of $1 and $2, float32, times those of $3, all packed in pairs of float16."""
    constants = {"half": 0.5} | {f"c{i}": constant for i, constant in enumerate(GELU_COEFFICIENTS)}
    bits = {name: struct.unpack("<H", struct.pack("<e", constant))[0] for name, constant in constants.items()}
    powers = ["c4", "power", "power", "power"]
    lines = [
        f".reg .b32 x, square, power, {', '.join(constants)};",
        *(f"mov.b32 {name}, 0x{half:04x}{half:04x};" for name, half in bits.items()),
        "cvt.rn.f16x2.f32 x, $2, $1;",
        "mul.rn.f16x2 square, x, x;",
        *(f"fma.rn.f16x2 power, {power}, square, c{3 - i};" for i, power in enumerate(powers)),
        "fma.rn.sat.f16x2 power, power, x, half;",
        "mul.rn.f16x2 x, x, power;",
        "mul.rn.f16x2 $0, x, $3;",
    ]
    return "{ " + "\n".join(lines) + " }"


PACKED_GELU = gl.constexpr(write_packed_gelu())


@gluon.jit
def reciprocal(x):
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def power_of_two(x):
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def apply_activation(x, KIND: gl.constexpr):
    """Return the activation of `x`, float32, by the formulas of `rows.apply_activation`."""
    if KIND == 0:
        square = x * x
        power = LOGISTIC[0] * square + LOGISTIC[1]
        for i in gl.static_range(2, 5):
            power = power * square + LOGISTIC[i]
        result = x * reciprocal(1.0 + power_of_two(x * power))
    elif KIND == 1:
        result = x * reciprocal(1.0 + power_of_two(x * (-2.302208198144325 - 0.10294323970949 * x * x)))
    elif KIND == 2:
        result = gl.maximum(x, 0.0)
    else:
        result = x * reciprocal(1.0 + power_of_two(-1.4426950408889634 * x))
    return result


@gluon.jit
def scaled_gelu(x, factors):
    """Return the GELU of x, float32, times factors, float16: more of it than e4m3 keeps, in few instructions for two
    numbers each, without the special unit. What float16 has no room for must have a factor of NaN."""
    return gl.inline_asm_elementwise(
        PACKED_GELU, "=r,f,f,r", [x, factors], dtype=gl.float16, is_pure=True, pack=2
    )


@gluon.constexpr_function
def get_accumulator_layout(columns, left):
    """Return the layout of the accumulators of four warps: each has 16 rows of 64."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 256 // left.primitive_bitwidth]
    )


@gluon.jit
def split_columns(values):
    """Split values into their left and right columns."""
    halves = values.reshape([values.shape[0], 2, values.shape[1] // 2])
    return halves.permute((0, 2, 1)).split()


@gluon.jit
def find_tile(tile, tiles_m, tiles_n, GROUP_SIZE_M: gl.constexpr):
    """Return the row and column of a tile: `GROUP_SIZE_M` rows of tiles share weights, one after another."""
    group = tile // (GROUP_SIZE_M * tiles_n)
    height = gl.minimum(tiles_m - group * GROUP_SIZE_M, GROUP_SIZE_M)
    within = tile % (GROUP_SIZE_M * tiles_n)
    return group * GROUP_SIZE_M + within % height, within // height


@gluon.jit
def get_previous(stage, stages: gl.constexpr):
    """Return the stage before `at`."""
    return gl.where(stage == 0, stages - 1, stage - 1)


@gluon.jit
def load_blocks(left, right, blocks, sizes, GATED: gl.constexpr, GROUP_SIZE_M: gl.constexpr):
    """Fill the stages with blocks of both operands, in turn."""
    lefts, rights, full, empty = blocks
    rows, columns, depth = sizes
    step: gl.constexpr = left.block_type.shape[1]
    width: gl.constexpr = right.block_type.shape[0]
    stages: gl.constexpr = lefts.shape[0]
    tiles_m = gl.cdiv(rows, ROWS)
    tiles_n = gl.cdiv(columns, width)
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = find_tile(tile, tiles_m, tiles_n, GROUP_SIZE_M)
        for k in range(0, depth, step):
            mbarrier.wait(empty.index(stage), phase)
            barrier = full.index(stage)
            mbarrier.expect(barrier, left.block_type.nbytes + (2 if GATED else 1) * right.block_type.nbytes)
            LOAD(left, [m * ROWS, k], barrier, lefts.index(stage))
            if GATED:
                LOAD(right, [n * width, k], barrier, rights.index(stage).slice(0, width))
                LOAD(right, [columns + n * width, k], barrier, rights.index(stage).slice(width, width))
            else:
                LOAD(right, [n * width, k], barrier, rights.index(stage))
            last = stage == stages - 1
            stage = gl.where(last, 0, stage + 1)
            phase = gl.where(last, phase ^ 1, phase)


@gluon.jit
def scale_and_shift(
    sums,
    row_scales,
    column_scales,
    bias,
    first,  # of the columns that are meant
    column_indices,  # from there on
    SCALED_ROWS: gl.constexpr,
    SCALED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
):
    """Return sums times the scales of both operands, plus the bias."""
    if SCALED_ROWS:
        sums = sums * row_scales[:, None]
    if SCALED:
        sums = sums * gl.load(column_scales + first + column_indices)[None, :]
    if HAS_BIAS:
        sums += gl.load(bias + first + column_indices).to(gl.float32)[None, :]
    return sums


@gluon.jit
def multiply_blocks(
    consumer,
    turns,
    outputs,
    blocks,
    vectors,
    sizes,
    bounds,
    GATED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    KIND: gl.constexpr,
    SCALED: gl.constexpr,
    SCALED_ROWS: gl.constexpr,
    ADD: gl.constexpr,
    DEFERRED: gl.constexpr,
    QUANTIZED_OUT: gl.constexpr,
    GROUP_SIZE_M: gl.constexpr,
):
    """Multiply the blocks in the stages for every second tile, and write the result. consumer: 0 or 1."""
    out, add, staged, add_ready = outputs
    lefts, rights, full, empty = blocks
    bias, left_scales, right_scales, lengths, out_scales, factors, shifts, norm_weight = vectors
    rows, columns, depth = sizes
    weight_bound, bias_bound, up_weight_bound, up_bias_bound = bounds
    left: gl.constexpr = lefts.dtype
    kind: gl.constexpr = gl.int32 if left.is_int() else gl.float32
    layout: gl.constexpr = get_accumulator_layout(COLUMNS, left)
    GELU_IN_FLOAT16: gl.constexpr = QUANTIZED_OUT and KIND == 0 and not (GATED or ADD)
    stages: gl.constexpr = lefts.shape[0]
    subtile_width: gl.constexpr = out.block_type.shape[1]
    width: gl.constexpr = SUBTILES * subtile_width
    subtile_layout: gl.constexpr = get_accumulator_layout(subtile_width, left)
    row_layout: gl.constexpr = gl.SliceLayout(1, subtile_layout)
    column_layout: gl.constexpr = gl.SliceLayout(0, subtile_layout)
    tiles_m = gl.cdiv(rows, ROWS)
    tiles_n = gl.cdiv(columns, width)
    steps = gl.cdiv(depth, lefts.shape[2])
    first = gl.program_id(0) + consumer * gl.num_programs(0)
    tile_stride = CONSUMERS * gl.num_programs(0)
    sums = gl.zeros([ROWS, COLUMNS], kind, layout)
    for turn in range(gl.cdiv(tiles_m * tiles_n - first, tile_stride)):
        m, n = find_tile(first + turn * tile_stride, tiles_m, tiles_n, GROUP_SIZE_M)
        if ADD:
            tma.store_wait(0)
            mbarrier.expect(add_ready.index(consumer), SUBTILES * add.block_type.nbytes)
            for subtile in gl.static_range(SUBTILES):
                column = n * width + subtile * subtile_width
                LOAD(
                    add,
                    [m * ROWS, column],
                    add_ready.index(consumer),
                    staged.index(consumer * SUBTILES + subtile),
                )
        # Asked for before the turn: they are there when it ends.
        row_indices = m * ROWS + gl.arange(0, ROWS, row_layout)
        row_mask = row_indices < rows
        scale = None
        if SCALED_ROWS:
            scale = gl.load(left_scales + row_indices, mask=row_mask, other=0.0)
        if DEFERRED:
            factor = gl.load(factors + row_indices, mask=row_mask, other=0.0)
            shift = gl.load(shifts + row_indices, mask=row_mask, other=0.0)
        if QUANTIZED_OUT:
            length = gl.load(lengths + row_indices, mask=row_mask, other=0.0)
            bound = length * weight_bound + bias_bound
            if GATED:
                bound *= length * up_weight_bound + up_bias_bound
            bound = gl.maximum(bound, MIN_FLOAT16_BOUND if GELU_IN_FLOAT16 else 1e-12)
            if n == 0:
                gl.store(out_scales + row_indices, bound / 448.0, mask=row_mask)
            out_factors = 448.0 / bound
            if GELU_IN_FLOAT16:
                out_factors = gl.where(bound <= 65504.0, out_factors, float("nan"))
        # A wait tells two phases of a barrier apart, no more: a consumer looks at stages when it is its turn. Consumer
        # 0 has its first turn from the start.
        mbarrier.wait(turns.index(consumer), (turn ^ consumer ^ 1) & 1)
        step_count = (turn * CONSUMERS + consumer) * steps
        stage = step_count % stages
        phase = step_count // stages & 1
        for step in range(steps):
            mbarrier.wait(full.index(stage), phase)
            right = rights.index(stage).permute((1, 0))
            sums = warpgroup_mma(lefts.index(stage), right, sums, use_acc=step > 0, is_async=True)
            # The one before is done, and what it read may be overwritten.
            sums = warpgroup_mma_wait(1, deps=(sums,))
            mbarrier.arrive(empty.index(get_previous(stage, stages)), count=1, pred=step > 0)
            last = stage == stages - 1
            stage = gl.where(last, 0, stage + 1)
            phase = gl.where(last, phase ^ 1, phase)
        mbarrier.arrive(turns.index(1 - consumer), count=1)
        finished_sums = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(empty.index(get_previous(stage, stages)), count=1)

        if ADD:
            mbarrier.wait(add_ready.index(consumer), turn & 1)
        low, high = split_columns(finished_sums)
        if GATED:
            gates, ups = split_columns(low), split_columns(high)
        else:
            gates, ups = (low, high), (low, high)
        for subtile in gl.static_range(SUBTILES):
            column = n * width + subtile * subtile_width
            column_indices = column + gl.arange(0, subtile_width, column_layout)
            subtile_buffer = staged.index(consumer * SUBTILES + subtile)
            if ADD:
                # First: after the sums' own factors it would take more registers than there are.
                residual = subtile_buffer.load(subtile_layout).to(gl.float32)
                if DEFERRED:
                    residual = residual * factor[:, None] + shift[:, None]
                    residual *= gl.load(norm_weight + column_indices)[None, :]
            values = gl.convert_layout(gates[subtile], subtile_layout, assert_trivial=True).to(gl.float32)
            values = scale_and_shift(
                values, scale, right_scales, bias, 0, column_indices, SCALED_ROWS, SCALED, HAS_BIAS
            )
            if GELU_IN_FLOAT16:
                values = scaled_gelu(values, out_factors.to(gl.float16)[:, None])
            elif KIND >= 0:
                values = apply_activation(values, KIND)
            if GATED:
                up = gl.convert_layout(ups[subtile], subtile_layout, assert_trivial=True).to(gl.float32)
                values *= scale_and_shift(
                    up, scale, right_scales, bias, columns, column_indices, SCALED_ROWS, SCALED, HAS_BIAS
                )
            if ADD:
                values += residual
            if QUANTIZED_OUT and not GELU_IN_FLOAT16:
                values = values * out_factors[:, None]
            if not ADD:
                # The stores of the tile before, up to this part.
                tma.store_wait(SUBTILES - 1)
            subtile_buffer.store(values.to(out.dtype))
            fence_async_shared()
            STORE(out, [m * ROWS, column], subtile_buffer)
        sums = finished_sums
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["rows"])
def product(
    left,  # descriptor of (rows, depth)
    right,  # descriptor of (columns, depth); where GATED, gate rows before up rows: (2 * columns, depth)
    out,  # descriptor of (rows, columns)
    add,  # likewise, read where ADD
    bias,  # read where HAS_BIAS
    left_scales,  # float32 (rows,), read where SCALED_ROWS
    right_scales,  # float32 (columns,), read where SCALED
    lengths,  # float32 (rows,), Euclidean, of the rows of `left`, read where QUANTIZED_OUT
    out_scales,  # float32 (rows,), written where QUANTIZED_OUT
    factors,  # float32 (rows,), read where DEFERRED
    shifts,  # likewise
    norm_weight,  # float32 (columns,), likewise
    rows,
    columns,  # a multiple of a tile's
    depth,
    weight_bound,  # no gate or plain column is longer than this
    bias_bound,
    up_weight_bound,
    up_bias_bound,
    GATED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    KIND: gl.constexpr,  # of `apply_activation`; -1 for none
    SCALED: gl.constexpr,
    SCALED_ROWS: gl.constexpr,
    ADD: gl.constexpr,
    DEFERRED: gl.constexpr,  # what is added is (add * factor + shift) * norm_weight
    QUANTIZED_OUT: gl.constexpr,  # write e4m3, with a scale by the bound that the lengths set
    STAGES: gl.constexpr,  # of the pipeline, each with a block of both operands
    GROUP_SIZE_M: gl.constexpr,
):
    """out = activation(left right^T + bias) (+ add), or activation(gate) * up."""
    lefts = gl.allocate_shared_memory(left.dtype, [STAGES, ROWS, left.block_type.shape[1]], left.layout)
    rights = gl.allocate_shared_memory(right.dtype, [STAGES, COLUMNS, left.block_type.shape[1]], right.layout)
    staged = gl.allocate_shared_memory(
        out.dtype, [CONSUMERS * SUBTILES, out.block_type.shape[0], out.block_type.shape[1]], out.layout
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    add_ready = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(CONSUMERS):
        mbarrier.init(add_ready.index(i), count=1)
        mbarrier.init(turns.index(i), count=1)
    fence_async_shared()
    outputs = (out, add, staged, add_ready)
    blocks = (lefts, rights, full, empty)
    vectors = (bias, left_scales, right_scales, lengths, out_scales, factors, shifts, norm_weight)
    sizes = (rows, columns, depth)
    bounds = (weight_bound, bias_bound, up_weight_bound, up_bias_bound)
    # fmt: off
    gl.warp_specialize(
        [
            (multiply_blocks, (0, turns, outputs, blocks, vectors, sizes, bounds,
                       GATED, HAS_BIAS, KIND, SCALED, SCALED_ROWS, ADD, DEFERRED, QUANTIZED_OUT, GROUP_SIZE_M)),
            (multiply_blocks, (1, turns, outputs, blocks, vectors, sizes, bounds,
                       GATED, HAS_BIAS, KIND, SCALED, SCALED_ROWS, ADD, DEFERRED, QUANTIZED_OUT, GROUP_SIZE_M)),
            (load_blocks, (left, right, blocks, sizes, GATED, GROUP_SIZE_M)),
        ],
        # Warps and registers of each thread, of all but the first.
        [4, 1],
        [240, 24],
    )
    # fmt: on
