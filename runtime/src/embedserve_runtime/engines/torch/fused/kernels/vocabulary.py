"""The last product of a masked-LM head, pooled over the tokens of each sequence before anything is written."""

import triton
import triton.language as tl


@triton.jit
def pool_vocabulary(
    hidden,  # (tokens, depth)
    weight,  # (vocabulary, depth)
    bias,  # read where HAS_BIAS
    ends,  # int32 (tokens,): one past the last token of the token's sequence
    sequence_of,  # int32 (tokens,)
    out,  # float32 (sequences, vocabulary), zeros
    tokens,
    vocabulary,
    depth,
    HAS_BIAS: tl.constexpr,
    LOGS: tl.constexpr,  # 0: the largest; 1, 2: the sum of log(1 + ...), taken once or twice
    PRECISION: tl.constexpr,  # of float32 products; 16-bit ones are exact
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out[s, v] = pooled max(0, hidden weight^T + bias) over the tokens of s. A tile holds tokens of one or more
    sequences; what it finds for each is merged into `out` atomically."""
    first = tl.program_id(0) * BLOCK_M
    token_indices = first + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    depths = tl.arange(0, BLOCK_K)
    real, inside = token_indices < tokens, columns < vocabulary
    lefts = hidden + token_indices[:, None].to(tl.int64) * depth + depths[None, :]
    rights = weight + columns[None, :].to(tl.int64) * depth + depths[:, None]
    logits = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(0, depth, BLOCK_K):
        within = begin + depths < depth
        left = tl.load(lefts + begin, mask=real[:, None] & within[None, :], other=0.0)
        right = tl.load(rights + begin, mask=within[:, None] & inside[None, :], other=0.0)
        logits = tl.dot(left, right, logits, input_precision=PRECISION)
    if HAS_BIAS:
        logits += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    # What is not a number stays, for others to see.
    logits = tl.where(logits <= 0.0, 0.0, logits)
    if LOGS >= 1:
        logits = tl.log(1.0 + logits)
    if LOGS >= 2:
        logits = tl.log(1.0 + logits)
    token = first
    end = tl.minimum(first + BLOCK_M, tokens)
    while token < end:
        stop = tl.load(ends + token)
        own = (token_indices >= token) & (token_indices < stop) & real
        own_logits = tl.where(own[:, None], logits, 0.0)
        at = out + tl.load(sequence_of + token).to(tl.int64) * vocabulary + columns
        if LOGS == 0:
            # All values are at least 0, and such floats are ordered like their bits; NaN comes last.
            largest = tl.max(own_logits.to(tl.int32, bitcast=True), 0)
            tl.atomic_max(at.to(tl.pointer_type(tl.int32), bitcast=True), largest, mask=inside)
        else:
            tl.atomic_add(at, tl.sum(own_logits, 0), mask=inside)
        token = stop
