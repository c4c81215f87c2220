"""Products with all that follows them in their epilogue, for Hopper, in Gluon: 16 bit, e4m3 or int8.

A program stays on its multiprocessor and has three parts that run concurrently. One warp asks the tensor memory
accelerator for the next blocks of both operands, as long as a stage of the pipeline is free. Two groups of four warps
take turns at tiles of the output: while one multiplies, the other is at the bias, activation and stores of its own
("ping-pong"). A group's turn begins when the other has asked for its last product.
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
# A tile's columns go through the epilogue in `PARTS` parts: all at once would not fit in registers.
PARTS = gl.constexpr(2)
# Groups that take turns.
GROUPS = gl.constexpr(2)
# Of a result whose GELU is in float16: 448 by it is a number of float16.
MIN_BOUND_OF_HALVES = gl.constexpr(0.007)
# GELU, by erf, is x * share(x), the share about 1/2 + x (c0 + c1 x^2 + c2 x^4 + ...), never below 0 or above 1. They
# are numbers of float16, found by trying so that the error of GELU in float16 is small: 3e-3 at most, 8e-4 for normal
# x, which rounding to e4m3 changes by 1.7e-2.
SHARE = (0.39453125, -0.059783935546875, 0.00670623779296875, -0.00041675567626953125, 1.0728836059570312e-05)


def write_gelu_of_pairs() -> str:
    """Assembly: $0 = GELU of $1 and $2, float32, times those of $3, all in pairs of float16."""
    constants = {"half": 0.5} | {f"c{i}": constant for i, constant in enumerate(SHARE)}
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


GELU_OF_PAIRS = gl.constexpr(write_gelu_of_pairs())


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
    """GELU of x, float32, times factors, float16: more of it than e4m3 keeps, in few instructions for two numbers
    each, without the special unit. What float16 has no room for must have a factor of NaN."""
    return gl.inline_asm_elementwise(
        GELU_OF_PAIRS, "=r,f,f,r", [x, factors], dtype=gl.float16, is_pure=True, pack=2
    )


@gluon.constexpr_function
def get_accumulator_layout(columns, left):
    """Return the layout of the accumulators of four warps: each has 16 rows of 64."""
    return gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 256 // left.primitive_bitwidth]
    )


@gluon.jit
def split_columns(values):
    """Left and right columns."""
    split = values.reshape([values.shape[0], 2, values.shape[1] // 2])
    return split.permute((0, 2, 1)).split()


@gluon.jit
def find_tile(tile, tiles_m, tiles_n, TOGETHER: gl.constexpr):
    """Row and column of a tile: `TOGETHER` rows of tiles go through the same weights one after the other."""
    group = tile // (TOGETHER * tiles_n)
    height = gl.minimum(tiles_m - group * TOGETHER, TOGETHER)
    within = tile % (TOGETHER * tiles_n)
    return group * TOGETHER + within % height, within // height


@gluon.jit
def get_previous(at, stages: gl.constexpr):
    """Return the stage before `at`."""
    return gl.where(at == 0, stages - 1, at - 1)


@gluon.jit
def load_blocks(left, right, blocks, sizes, GATED: gl.constexpr, TOGETHER: gl.constexpr):
    """Fill the stages with blocks of both operands, in turn."""
    lefts, rights, filled, free = blocks
    rows, columns, depth = sizes
    step: gl.constexpr = left.block_type.shape[1]
    width: gl.constexpr = right.block_type.shape[0]
    stages: gl.constexpr = lefts.shape[0]
    tiles_m = gl.cdiv(rows, ROWS)
    tiles_n = gl.cdiv(columns, width)
    at = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = find_tile(tile, tiles_m, tiles_n, TOGETHER)
        for k in range(0, depth, step):
            mbarrier.wait(free.index(at), phase)
            barrier = filled.index(at)
            mbarrier.expect(barrier, left.block_type.nbytes + (2 if GATED else 1) * right.block_type.nbytes)
            LOAD(left, [m * ROWS, k], barrier, lefts.index(at))
            if GATED:
                LOAD(right, [n * width, k], barrier, rights.index(at).slice(0, width))
                LOAD(right, [columns + n * width, k], barrier, rights.index(at).slice(width, width))
            else:
                LOAD(right, [n * width, k], barrier, rights.index(at))
            last = at == stages - 1
            at = gl.where(last, 0, at + 1)
            phase = gl.where(last, phase ^ 1, phase)


@gluon.jit
def multiply_blocks(
    group,
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
    NARROW: gl.constexpr,
    TOGETHER: gl.constexpr,
):
    """Multiply the blocks in the stages for every second tile, and write the result. group: 0 or 1, of the two."""
    out, add, staged, added = outputs
    lefts, rights, filled, free = blocks
    bias, left_scales, right_scales, lengths, out_scales, factors, shifts, norm_weight = vectors
    rows, columns, depth = sizes
    weight_bound, bias_bound, up_weight_bound, up_bias_bound = bounds
    left: gl.constexpr = lefts.dtype
    kind: gl.constexpr = gl.int32 if left.is_int() else gl.float32
    layout: gl.constexpr = get_accumulator_layout(COLUMNS, left)
    IN_HALVES: gl.constexpr = NARROW and KIND == 0 and not (GATED or ADD)
    stages: gl.constexpr = lefts.shape[0]
    part_width: gl.constexpr = out.block_type.shape[1]
    width: gl.constexpr = PARTS * part_width
    part_layout: gl.constexpr = get_accumulator_layout(part_width, left)
    along: gl.constexpr = gl.SliceLayout(1, part_layout)
    across: gl.constexpr = gl.SliceLayout(0, part_layout)
    tiles_m = gl.cdiv(rows, ROWS)
    tiles_n = gl.cdiv(columns, width)
    steps = gl.cdiv(depth, lefts.shape[2])
    first = gl.program_id(0) + group * gl.num_programs(0)
    apart = GROUPS * gl.num_programs(0)
    sums = gl.zeros([ROWS, COLUMNS], kind, layout)
    for turn in range(gl.cdiv(tiles_m * tiles_n - first, apart)):
        m, n = find_tile(first + turn * apart, tiles_m, tiles_n, TOGETHER)
        if ADD:
            tma.store_wait(0)
            mbarrier.expect(added.index(group), PARTS * add.block_type.nbytes)
            for part in gl.static_range(PARTS):
                column = n * width + part * part_width
                LOAD(add, [m * ROWS, column], added.index(group), staged.index(group * PARTS + part))
        # Asked for before the turn: they are there when it ends.
        below = m * ROWS + gl.arange(0, ROWS, along)
        real = below < rows
        if SCALED_ROWS:
            scale = gl.load(left_scales + below, mask=real, other=0.0)
        if DEFERRED:
            factor = gl.load(factors + below, mask=real, other=0.0)
            shift = gl.load(shifts + below, mask=real, other=0.0)
        if NARROW:
            length = gl.load(lengths + below, mask=real, other=0.0)
            bound = length * weight_bound + bias_bound
            if GATED:
                bound *= length * up_weight_bound + up_bias_bound
            bound = gl.maximum(bound, MIN_BOUND_OF_HALVES if IN_HALVES else 1e-12)
            if n == 0:
                gl.store(out_scales + below, bound / 448.0, mask=real)
            narrowing = 448.0 / bound
            if IN_HALVES:
                narrowing = gl.where(bound <= 65504.0, narrowing, float("nan"))
        # A wait tells two phases of a barrier apart, no more: a group looks at stages when it is its turn. Its first
        # turn group 0 has from the start.
        mbarrier.wait(turns.index(group), (turn ^ group ^ 1) & 1)
        step_count = (turn * GROUPS + group) * steps
        at = step_count % stages
        phase = step_count // stages & 1
        for step in range(steps):
            mbarrier.wait(filled.index(at), phase)
            rights_here = rights.index(at).permute((1, 0))
            sums = warpgroup_mma(lefts.index(at), rights_here, sums, use_acc=step > 0, is_async=True)
            # The one before is done, and what it read may be overwritten.
            sums = warpgroup_mma_wait(1, deps=(sums,))
            mbarrier.arrive(free.index(get_previous(at, stages)), count=1, pred=step > 0)
            last = at == stages - 1
            at = gl.where(last, 0, at + 1)
            phase = gl.where(last, phase ^ 1, phase)
        mbarrier.arrive(turns.index(1 - group), count=1)
        done = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(free.index(get_previous(at, stages)), count=1)

        if ADD:
            mbarrier.wait(added.index(group), turn & 1)
        low, high = split_columns(done)
        if GATED:
            gates, ups = split_columns(low), split_columns(high)
        else:
            gates, ups = (low, high), (low, high)
        for part in gl.static_range(PARTS):
            column = n * width + part * part_width
            inside = column + gl.arange(0, part_width, across)
            part_buffer = staged.index(group * PARTS + part)
            if ADD:
                # First: after the sums' own factors it would take more registers than there are.
                residual = part_buffer.load(part_layout).to(gl.float32)
                if DEFERRED:
                    residual = residual * factor[:, None] + shift[:, None]
                    residual *= gl.load(norm_weight + inside)[None, :]
            values = gl.convert_layout(gates[part], part_layout, assert_trivial=True).to(gl.float32)
            if SCALED_ROWS:
                values = values * scale[:, None]
            if SCALED:
                values = values * gl.load(right_scales + inside)[None, :]
            if HAS_BIAS:
                values += gl.load(bias + inside).to(gl.float32)[None, :]
            if IN_HALVES:
                values = scaled_gelu(values, narrowing.to(gl.float16)[:, None])
            elif KIND >= 0:
                values = apply_activation(values, KIND)
            if GATED:
                up = gl.convert_layout(ups[part], part_layout, assert_trivial=True).to(gl.float32)
                if SCALED_ROWS:
                    up = up * scale[:, None]
                if SCALED:
                    up = up * gl.load(right_scales + columns + inside)[None, :]
                if HAS_BIAS:
                    up += gl.load(bias + columns + inside).to(gl.float32)[None, :]
                values *= up
            if ADD:
                values += residual
            if NARROW and not IN_HALVES:
                values = values * narrowing[:, None]
            if not ADD:
                # The stores of the tile before, up to this part.
                tma.store_wait(PARTS - 1)
            part_buffer.store(values.to(out.dtype))
            fence_async_shared()
            STORE(out, [m * ROWS, column], part_buffer)
        sums = done
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
    lengths,  # float32 (rows,), Euclidean, of the rows of `left`, read where NARROW
    out_scales,  # float32 (rows,), written where NARROW
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
    NARROW: gl.constexpr,  # write e4m3, with a scale by the bound that the lengths set
    STAGES: gl.constexpr,  # of the pipeline, each with a block of both operands
    TOGETHER: gl.constexpr,
):
    """out = activation(left right^T + bias) (+ add), or activation(gate) * up."""
    lefts = gl.allocate_shared_memory(left.dtype, [STAGES, ROWS, left.block_type.shape[1]], left.layout)
    rights = gl.allocate_shared_memory(right.dtype, [STAGES, COLUMNS, left.block_type.shape[1]], right.layout)
    staged = gl.allocate_shared_memory(
        out.dtype, [GROUPS * PARTS, out.block_type.shape[0], out.block_type.shape[1]], out.layout
    )
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    added = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(filled.index(i), count=1)
        mbarrier.init(free.index(i), count=1)
    for i in gl.static_range(GROUPS):
        mbarrier.init(added.index(i), count=1)
        mbarrier.init(turns.index(i), count=1)
    fence_async_shared()
    outputs = (out, add, staged, added)
    blocks = (lefts, rights, filled, free)
    vectors = (bias, left_scales, right_scales, lengths, out_scales, factors, shifts, norm_weight)
    sizes = (rows, columns, depth)
    bounds = (weight_bound, bias_bound, up_weight_bound, up_bias_bound)
    # fmt: off
    gl.warp_specialize(
        [
            (multiply_blocks, (0, turns, outputs, blocks, vectors, sizes, bounds,
                       GATED, HAS_BIAS, KIND, SCALED, SCALED_ROWS, ADD, DEFERRED, NARROW, TOGETHER)),
            (multiply_blocks, (1, turns, outputs, blocks, vectors, sizes, bounds,
                       GATED, HAS_BIAS, KIND, SCALED, SCALED_ROWS, ADD, DEFERRED, NARROW, TOGETHER)),
            (load_blocks, (left, right, blocks, sizes, GATED, TOGETHER)),
        ],
        # Warps and registers of each thread, of all but the first.
        [4, 1],
        [240, 24],
    )
    # fmt: on
