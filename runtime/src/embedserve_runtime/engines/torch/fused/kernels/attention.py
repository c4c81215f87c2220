"""Softmax attention over packed sequences, in Triton: one program a (head, tile of tokens).

A tile is a run of consecutive packed tokens, whatever sequences they belong to; each token knows where its sequence
starts and ends, and a score across sequences is masked. So short sequences share a tile, long ones are split into
tiles, nothing is padded, and the grid depends on the number of tokens alone (a CUDA graph can hold it).
Softmax is the online form in base 2 (FlashAttention 2, arXiv:2307.08691), sums in float32.
"""

import triton
import triton.language as tl

# Scores start from this, not from -inf: a row that has seen no key yet must not make NaN of inf - inf.
FLOOR = tl.constexpr(-1.0e30)


@triton.jit
def attend(
    query,  # (tokens, heads, size), strides query_step a token and HEAD_SIZE a head
    key,  # (tokens, kv heads, size), strides key_step and HEAD_SIZE
    value,
    out,  # (tokens, heads, size), strides out_step and HEAD_SIZE
    starts,  # int32 (tokens,): first token of the token's sequence
    ends,  # int32 (tokens,): one past its last
    slopes,  # float32 (heads,), read where ALIBI
    table,  # float32 (heads, table_step), read where TABLE: added by key - query
    content_to_position,  # (heads, tokens, rows), read where TO_POSITION: query times the position's key
    position_to_content,  # (heads, tokens, rows), read where TO_CONTENT: key times the position's query
    row_of,  # int32 by key - query + middle: which row a distance takes; read where TO_POSITION or TO_CONTENT
    tokens,
    rows,
    query_step,
    key_step,
    out_step,
    table_step,
    middle,
    scale,
    soft_cap,  # read where CAPPED
    HEAD_SIZE: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of one key head
    WINDOW: tl.constexpr,  # -1 for none
    CAUSAL: tl.constexpr,
    CAPPED: tl.constexpr,
    ALIBI: tl.constexpr,
    TABLE: tl.constexpr,
    TO_POSITION: tl.constexpr,
    TO_CONTENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_SIZE or the next power of 2
):
    log2e: tl.constexpr = 1.4426950408889634
    # Heads side by side: programs that run together read neighboring memory.
    head = tl.program_id(0)
    # From the last token on: the product before has just written it, and the cache still has it.
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    last = tl.minimum(first + BLOCK_M, tokens) - 1
    query_positions = first + tl.arange(0, BLOCK_M)
    sizes = tl.arange(0, BLOCK_D)
    row_mask = query_positions < tokens
    start, end, low, high, before, whole, blocks = _find_blocks(
        starts, ends, query_positions, row_mask, first, last, WINDOW=WINDOW, CAUSAL=CAUSAL, BLOCK_N=BLOCK_N
    )
    if HEAD_SIZE == BLOCK_D:
        query_mask = row_mask[:, None]
    else:
        query_mask = row_mask[:, None] & (sizes < HEAD_SIZE)[None, :]
    queries = tl.load(
        query + query_positions[:, None].to(tl.int64) * query_step + head * HEAD_SIZE + sizes[None, :],
        mask=query_mask,
        other=0.0,
    )
    key += head // GROUP * HEAD_SIZE
    value += head // GROUP * HEAD_SIZE
    slope = 0.0
    if ALIBI:
        slope = tl.load(slopes + head) * log2e
    if TABLE:
        table += head * table_step + middle
    if TO_POSITION or TO_CONTENT:
        row_of += middle
    if TO_POSITION:
        content_to_position += head.to(tl.int64) * tokens * rows
    if TO_CONTENT:
        position_to_content += head.to(tl.int64) * tokens * rows

    tile = (queries, query_positions, start, end)
    memory = (key, value, key_step, sizes, high)
    terms = (slope, table, content_to_position, position_to_content, row_of, rows)
    scales = (scale * log2e, soft_cap * log2e)
    maxima = tl.full([BLOCK_M], FLOOR, tl.float32)
    sums = tl.zeros([BLOCK_M], tl.float32)
    totals = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    base = low + before * BLOCK_N
    for block in range(whole):
        maxima, sums, totals = _attend_block(
            maxima,
            sums,
            totals,
            block_start=base + block * BLOCK_N,
            tile=tile,
            memory=memory,
            terms=terms,
            scales=scales,
            HEAD_SIZE=HEAD_SIZE,
            CAPPED=CAPPED,
            ALIBI=ALIBI,
            TABLE=TABLE,
            TO_POSITION=TO_POSITION,
            TO_CONTENT=TO_CONTENT,
            BLOCK_N=BLOCK_N,
            BLOCK_D=BLOCK_D,
            MASKED=False,
        )
    for block in range(blocks - whole):
        maxima, sums, totals = _attend_block(
            maxima,
            sums,
            totals,
            block_start=low + block * BLOCK_N + tl.where(block < before, 0, whole * BLOCK_N),
            tile=tile,
            memory=memory,
            terms=terms,
            scales=scales,
            HEAD_SIZE=HEAD_SIZE,
            CAPPED=CAPPED,
            ALIBI=ALIBI,
            TABLE=TABLE,
            TO_POSITION=TO_POSITION,
            TO_CONTENT=TO_CONTENT,
            BLOCK_N=BLOCK_N,
            BLOCK_D=BLOCK_D,
            MASKED=True,
        )
    at = query_positions[:, None].to(tl.int64) * out_step + head * HEAD_SIZE + sizes[None, :]
    # The compiler gives each thread as many numbers of all that has one shape. Of e4m3 that would be 16, too many for
    # keys and values: at 32 x 512 attention took a third longer.
    at = tl.max_contiguous(at, [1, 8])
    tl.store(out + at, (totals / sums[:, None]).to(out.dtype.element_ty), mask=query_mask)


@triton.jit
def _find_blocks(
    starts,
    ends,
    query_positions,
    row_mask,
    first,  # query of the tile
    last,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return the first and last key (exclusive) that each query sees, and that any of them sees; and of the blocks of
    keys from there on the number before those that all queries see whole, the number of these, and the number of all.
    """
    start = tl.load(starts + query_positions, mask=row_mask, other=0)
    end = tl.load(ends + query_positions, mask=row_mask, other=0)

    # Keys that any query of the tile may see, and those that all of them see.
    low, high = tl.load(starts + first), tl.load(ends + last)
    all_low, all_high = tl.load(starts + last), tl.load(ends + first)
    if WINDOW >= 0:
        low, high = tl.maximum(low, first - WINDOW), tl.minimum(high, last + WINDOW + 1)
        all_low, all_high = tl.maximum(all_low, last - WINDOW), tl.minimum(all_high, first + WINDOW + 1)
        start, end = (
            tl.maximum(start, query_positions - WINDOW),
            tl.minimum(end, query_positions + WINDOW + 1),
        )
    if CAUSAL:
        high, all_high = tl.minimum(high, last + 1), tl.minimum(all_high, first + 1)
        end = tl.minimum(end, query_positions + 1)
    before = tl.cdiv(tl.maximum(all_low - low, 0), BLOCK_N)
    blocks = tl.cdiv(high - low, BLOCK_N)
    whole = tl.maximum(all_high - low - before * BLOCK_N, 0) // BLOCK_N
    before = tl.minimum(before, blocks)
    return start, end, low, high, before, whole, blocks


@triton.jit
def _attend_block(
    maxima,
    sums,
    totals,
    block_start,
    tile,  # the queries with their positions, and the first and last key (exclusive) that each may see
    memory,  # keys and values with their stride, the columns of a head, and the last key of the tile (exclusive)
    terms,  # what is added to the scores by position: see `attend`
    scales,  # of the scores and of their cap, in base 2
    HEAD_SIZE: tl.constexpr,
    CAPPED: tl.constexpr,
    ALIBI: tl.constexpr,
    TABLE: tl.constexpr,
    TO_POSITION: tl.constexpr,
    TO_CONTENT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add one block of keys, from `block_start` on. MASKED: some query does not see some key of the block."""
    queries, query_positions, start, end = tile
    key, value, key_step, sizes, high = memory
    slope, table, content_to_position, position_to_content, row_of, rows = terms
    scale, soft_cap = scales
    log2e: tl.constexpr = 1.4426950408889634
    key_positions = block_start + tl.arange(0, BLOCK_N)
    # The block's start is a scalar: what each thread adds to it is the same for all blocks.
    key += block_start.to(tl.int64) * key_step
    value += block_start.to(tl.int64) * key_step
    offsets = tl.arange(0, BLOCK_N)[:, None] * key_step + sizes[None, :]
    if MASKED:
        key_mask = (key_positions < high)[:, None]
        if HEAD_SIZE != BLOCK_D:
            key_mask = key_mask & (sizes < HEAD_SIZE)[None, :]
        keys = tl.load(key + offsets, mask=key_mask, other=0.0)
        values = tl.load(value + offsets, mask=key_mask, other=0.0)
    elif HEAD_SIZE != BLOCK_D:
        key_mask = (sizes < HEAD_SIZE)[None, :]
        keys = tl.load(key + offsets, mask=key_mask, other=0.0)
        values = tl.load(value + offsets, mask=key_mask, other=0.0)
    else:
        keys = tl.load(key + offsets)
        values = tl.load(value + offsets)
    scores = tl.dot(queries, tl.trans(keys))
    # Where nothing is added, the scale waits for the subtraction of the maximum: one fused operation does both.
    late_scale = scale
    if CAPPED or ALIBI or TABLE or TO_POSITION or TO_CONTENT:
        scores *= scale
        late_scale = 1.0
    if CAPPED:
        # cap * tanh(x / cap), in base 2 as all scores; an exponential that overflows gives 1.
        powers = tl.exp2(scores * (2.0 * log2e / soft_cap))
        scores = soft_cap - 2.0 * soft_cap / (powers + 1.0)
    distances = key_positions[None, :] - query_positions[:, None]
    visible = (key_positions[None, :] >= start[:, None]) & (key_positions[None, :] < end[:, None])
    if ALIBI:
        scores -= slope * tl.abs(distances).to(tl.float32)
    if TABLE:
        scores += tl.load(table + distances, mask=visible, other=0.0) * log2e
    if TO_POSITION or TO_CONTENT:
        row = tl.load(row_of + distances, mask=visible, other=0)
        if TO_POSITION:
            at = query_positions[:, None].to(tl.int64) * rows + row
            scores += tl.load(content_to_position + at, mask=visible, other=0.0).to(tl.float32) * scale
        if TO_CONTENT:
            at = key_positions[None, :].to(tl.int64) * rows + row
            scores += tl.load(position_to_content + at, mask=visible, other=0.0).to(tl.float32) * scale
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    new_maxima = tl.maximum(maxima, tl.max(scores, 1) * late_scale)
    weights = tl.exp2(scores * late_scale - new_maxima[:, None])
    correction = tl.exp2(maxima - new_maxima)
    sums = sums * correction + tl.sum(weights, 1)
    totals = totals * correction[:, None]
    totals = tl.dot(weights.to(values.dtype), values, totals)
    return new_maxima, sums, totals
