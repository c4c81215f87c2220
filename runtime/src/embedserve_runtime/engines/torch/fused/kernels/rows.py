"""Row-wise kernels: embeddings with their norm, residual with norm, rotary positions, activations, pooling.

Each reads its inputs once and writes its outputs once; sums are in float32 whatever the values' type.
"""

import os

import triton
import triton.language as tl

# Triton's interpreter, in which tests run without a GPU, has no assembly.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
# Phi(x) by 1 / (1 + 2^(x P(x^2))), with P of these coefficients, from the highest on, fitted to Phi: at most 3.1e-6 off
# for any x.
LOGISTIC = tl.constexpr(
    (
        -3.2290657867783e-06,
        8.8239439540728e-05,
        3.6026812362589e-04,
        -1.0522667830858e-01,
        -2.3020453925948e00,
    )
)


@triton.jit
def _normalize(values, weight, bias, columns, inside, width, eps, RMS: tl.constexpr, BIAS: tl.constexpr):
    """LayerNorm or RMSNorm of rows (rows, BLOCK), float32; columns outside are zero before and after."""
    if RMS:
        variance = tl.sum(values * values, 1) / width
    else:
        mean = tl.sum(values, 1) / width
        values = tl.where(inside[None, :], values - mean[:, None], 0.0)
        variance = tl.sum(values * values, 1) / width
    # One division a row, not one a number.
    factors = (1.0 / tl.sqrt(variance + eps))[:, None]
    scaled = values * factors * tl.load(weight + columns, mask=inside, other=0.0)[None, :]
    if BIAS:
        scaled += tl.load(bias + columns, mask=inside, other=0.0)[None, :]
    return scaled


@triton.jit
def to_eight_bit(values, EIGHT: tl.constexpr):
    """Scaled values: 1 to e4m3, which the conversion keeps within its largest numbers, 2 to int8."""
    if EIGHT == 1:
        narrow = values.to(tl.float8e4nv)
    else:
        # 1.5 * 2^23 more leaves the rounded number in the last bits, in an eighth of the conversion's time.
        narrow = (values + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
    return narrow


@triton.jit
def embed(
    ids,
    types,  # read where TYPES is 2
    starts,
    word_embeddings,  # (vocabulary, width)
    type_rows,  # read where TYPES
    position_rows,  # read where POSITIONS
    weight,  # float32 (width,), read where NORM
    bias,  # likewise, read where NORM and BIAS
    out,
    width,
    scale,
    first_position,
    eps,
    TYPES: tl.constexpr,  # 0: no table, 1: all of type 0, 2: by token
    POSITIONS: tl.constexpr,
    NORM: tl.constexpr,
    RMS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[t] = norm(word_embeddings[ids[t]] * scale + type row + position row)."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    token_id = tl.load(ids + token).to(tl.int64)
    values = (
        tl.load(word_embeddings + token_id * width + columns, mask=inside, other=0.0).to(tl.float32) * scale
    )
    if TYPES == 1:
        values += tl.load(type_rows + columns, mask=inside, other=0.0).to(tl.float32)
    if TYPES == 2:
        kind = tl.load(types + token).to(tl.int64)
        values += tl.load(type_rows + kind * width + columns, mask=inside, other=0.0).to(tl.float32)
    if POSITIONS:
        position = token - tl.load(starts + token) + first_position
        values += tl.load(position_rows + position * width + columns, mask=inside, other=0.0).to(tl.float32)
    values = values[None, :]
    if NORM:
        values = _normalize(values, weight, bias, columns, inside, width, eps, RMS, BIAS)
    at = token * width + columns
    tl.store(out + at[None, :], values.to(out.dtype.element_ty), mask=inside[None, :])


@triton.jit
def add_norm(
    branch,
    residual,  # read where ADD
    branch_bias,  # read where BRANCH_BIAS
    post_weight,  # float32 (width,), read where POST
    post_bias,  # likewise, read where POST and BIAS
    weight,  # float32 (width,), read where NORM
    bias,  # likewise, read where NORM and BIAS
    total,  # written where KEEP
    out,  # written where NORM
    rows,
    width,
    eps,
    ADD: tl.constexpr,  # residual + branch, else the branch alone
    BRANCH_BIAS: tl.constexpr,
    POST: tl.constexpr,  # the branch goes through a norm of its own first
    KEEP: tl.constexpr,  # total (the sum before the norm) is written
    NORM: tl.constexpr,
    RMS: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """total = residual + post_norm(branch + branch_bias); out = norm(total). out and total may be their inputs."""
    row_indices = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    at = row_indices[:, None].to(tl.int64) * width + columns[None, :]
    real = (row_indices < rows)[:, None] & inside[None, :]
    # Both are read for the last time: what they leave in the cache makes room first.
    values = tl.load(branch + at, mask=real, other=0.0, eviction_policy="evict_first").to(tl.float32)
    if BRANCH_BIAS:
        values += tl.load(branch_bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    if POST:
        values = _normalize(values, post_weight, post_bias, columns, inside, width, eps, RMS, BIAS)
    if ADD:
        values += tl.load(residual + at, mask=real, other=0.0, eviction_policy="evict_first").to(tl.float32)
    if KEEP:
        tl.store(total + at, values.to(total.dtype.element_ty), mask=real)
    if NORM:
        # Of what is kept, so that the norm does not see digits that the residual has lost.
        if KEEP:
            values = values.to(total.dtype.element_ty).to(tl.float32)
        values = _normalize(values, weight, bias, columns, inside, width, eps, RMS, BIAS)
        tl.store(out + at, values.to(out.dtype.element_ty), mask=real)


@triton.jit
def rotate_heads(
    qkv,  # (tokens, heads, size), strides step a token and HEAD_SIZE a head; changed in place
    starts,
    cos,  # float32 (positions, HALF), read where HALF > 0
    sin,
    query_weight,  # float32 (HEAD_SIZE,), read where NORM
    query_bias,  # likewise, read where NORM and BIAS
    key_weight,
    key_bias,
    tokens,
    step,
    query_heads,
    eps,
    HEAD_SIZE: tl.constexpr,
    HALF: tl.constexpr,  # frequencies; 0 without rotary positions
    NORM: tl.constexpr,
    RMS: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Norm of each head (NORM), then rotary positions, on the query and key heads of the fused QKV product."""
    token_indices = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    real = (token_indices < tokens)[:, None]
    columns = tl.arange(0, BLOCK_D)
    inside = columns < HEAD_SIZE
    base = qkv + token_indices[:, None].to(tl.int64) * step + head * HEAD_SIZE
    values = tl.load(base + columns[None, :], mask=real & inside[None, :], other=0.0).to(tl.float32)
    if NORM:
        is_key = head >= query_heads
        weight = key_weight if is_key else query_weight
        if BIAS:
            bias = key_bias if is_key else query_bias
        mean = tl.zeros([ROWS], tl.float32)
        if not RMS:
            mean = tl.sum(values, 1) / HEAD_SIZE
        centred = tl.where(inside[None, :], values - mean[:, None], 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / HEAD_SIZE + eps)
        values = centred * scale[:, None] * tl.load(weight + columns, mask=inside, other=0.0)[None, :]
        if BIAS:
            values += tl.load(bias + columns, mask=inside, other=0.0)[None, :]
    if HALF > 0:
        # Dimension i of the first half meets i + HALF: the partner of each is read, and normed alike.
        first = columns < HALF
        partner = tl.where(first, columns + HALF, columns - HALF)
        met = inside & (columns < 2 * HALF)
        partner_values = tl.load(base + partner[None, :], mask=real & met[None, :], other=0.0).to(tl.float32)
        if NORM:
            partner_values = (partner_values - mean[:, None]) * scale[:, None]
            partner_values *= tl.load(weight + partner, mask=met, other=0.0)[None, :]
            if BIAS:
                partner_values += tl.load(bias + partner, mask=met, other=0.0)[None, :]
        positions = token_indices - tl.load(starts + token_indices, mask=token_indices < tokens, other=0)
        frequency = tl.where(first, columns, columns - HALF)
        at = positions[:, None] * HALF + frequency[None, :]
        cosines = tl.load(cos + at, mask=real & met[None, :], other=1.0)
        sines = tl.load(sin + at, mask=real & met[None, :], other=0.0)
        values = values * cosines + tl.where(first[None, :], -partner_values, partner_values) * sines
    # Every program owns its head of its rows, and all its loads are done.
    tl.debug_barrier()
    tl.store(base + columns[None, :], values.to(qkv.dtype.element_ty), mask=real & inside[None, :])


@triton.jit
def reciprocal(x):
    """1 / x to the last digit or two, 0 above 2^126. A full division handles sizes that no activation has, and takes
    a third of the time of the activation."""
    if INTERPRETED:
        result = 1.0 / x
    else:
        result = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return result


@triton.jit
def gelu(x):
    """x * Phi(x)."""
    square = x * x
    power = LOGISTIC[0] * square + LOGISTIC[1]
    for i in tl.static_range(2, 5):
        power = power * square + LOGISTIC[i]
    return x * reciprocal(1.0 + tl.exp2(x * power))


@triton.jit
def apply_activation(x, KIND: tl.constexpr):
    """KIND: 0 GELU, 1 GELU by tanh, 2 ReLU, 3 SiLU."""
    if KIND == 0:
        return gelu(x)
    if KIND == 1:
        # 0.5 x (1 + tanh(y)) = x / (1 + exp(-2 y)); 2 log2(e) sqrt(2 / pi) = 2.302208198...
        return x * reciprocal(1.0 + tl.exp2(-2.302208198144325 * (x + 0.044715 * x * x * x)))
    if KIND == 2:
        return tl.maximum(x, 0.0)
    return x * reciprocal(1.0 + tl.exp2(-1.4426950408889634 * x))


@triton.jit
def activate(
    inner,  # (tokens, width), gate before up where GATED
    out,  # (tokens, width) or, where GATED, (tokens, width / 2); may be `inner` where not
    total,
    width,
    GATED: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = activation(inner), or activation(gate) * up."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < total
    row, column = at // width, at % width
    if GATED:
        first = row * (2 * width) + column
    else:
        first = at
    values = tl.load(inner + first, mask=real, other=0.0).to(tl.float32)
    values = apply_activation(values, KIND)
    if GATED:
        values *= tl.load(inner + first + width, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, values.to(out.dtype.element_ty), mask=real)


@triton.jit
def pool(
    hidden,  # (tokens, width)
    firsts,  # int32 (sequences,): first token that is pooled
    lasts,  # int32 (sequences,): one past the last token
    origins,  # int32 (sequences,): first token of the sequence, from which weights count
    out,  # float32 (sequences, out_step), written from column `column` on
    width,
    out_step,
    column,
    KIND: tl.constexpr,  # 0 mean, 1 mean over sqrt(length), 2 weighted mean, 3 max, 4 first, 5 last
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Pool one row a sequence, float32; a program owns some columns of one sequence."""
    sequence = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    first, last = tl.load(firsts + sequence).to(tl.int64), tl.load(lasts + sequence).to(tl.int64)
    origin = tl.load(origins + sequence).to(tl.int64)
    if first == last:
        return
    if KIND >= 4:
        token = first
        if KIND == 5:
            token = last - 1
        result = tl.load(hidden + token * width + columns, mask=inside, other=0.0).to(tl.float32)
    else:
        accumulated = tl.full([ROWS, BLOCK], float("-inf") if KIND == 3 else 0.0, tl.float32)
        for begin in range(first, last, ROWS):
            token_indices = begin + tl.arange(0, ROWS)
            real = (token_indices < last)[:, None]
            values = tl.load(
                hidden + token_indices[:, None] * width + columns[None, :],
                mask=real & inside[None, :],
                other=0.0,
            ).to(tl.float32)
            if KIND == 3:
                accumulated = tl.maximum(accumulated, tl.where(real, values, float("-inf")))
            elif KIND == 2:
                accumulated += values * (token_indices - origin + 1).to(tl.float32)[:, None]
            else:
                accumulated += values
        length = (last - first).to(tl.float32)
        skipped = (first - origin).to(tl.float32)
        if KIND == 3:
            result = tl.max(accumulated, 0)
        else:
            result = tl.sum(accumulated, 0)
            if KIND == 0:
                result = result / length
            elif KIND == 1:
                result = result / tl.sqrt(length)
            else:
                # The sum of the weights skipped + 1 to skipped + length.
                result = result / (length * (2.0 * skipped + length + 1.0) / 2.0)
    tl.store(out + sequence.to(tl.int64) * out_step + column + columns, result, mask=inside)
