"""Estimates what a batch takes in memory while it runs, from the shape of the encoder alone.

The figures are for ONNX Runtime in float32; docs/engineering/memory.md has them beside what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_runtime.forward.grouping import MAX_GROUP_TOKENS
from embedserve_runtime.model.architecture import (
    Attention,
    Disentangled,
    Encoder,
    Experts,
    Layer,
    NormPlacement,
    RelativeBuckets,
)

FLOAT_BYTES = 4
QUERIES_OF_BLOCK = 128
"""Queries that long texts are attended in at a time (`engines.onnx.attention_blocks.BLOCK_TOKENS`)."""
ARENA_SHARE = 1.12
"""Bytes that ONNX Runtime's arena takes for each byte in use: it grows in steps, with pieces of other sizes between."""
ARENA_BYTES = 16 * 2**20
"""Bytes that ONNX Runtime's arena takes besides, however small the batch."""


@dataclass(frozen=True, slots=True)
class ActivationSizes:
    """Bytes that one batch takes.

    token: for each token. table: for the scores of the texts that are attended in one table. long_token: for each token
    of a text that is attended in blocks. fixed: however small it is.
    """

    token: int
    table: int
    long_token: int
    fixed: int = ARENA_BYTES

    def compute_batch_bytes(self, tokens: int, longest: int) -> int:
        """Return the bytes of a batch of `tokens` tokens, one text of which has `longest`; it has at least those."""
        scores = max(self.table, self.long_token * longest if longest > MAX_GROUP_TOKENS else 0)
        return self.fixed + self.token * max(tokens, longest) + scores


def estimate_activations(encoder: Encoder) -> ActivationSizes:
    """Return what a batch takes on ONNX Runtime, at the widest point of the widest layer."""
    hidden = encoder.hidden_size
    token = max((_count_token_floats(layer, hidden) for layer in encoder.layers), default=hidden)
    tables = [_count_table_floats(layer.attention, encoder.max_positions) for layer in encoder.layers]
    long = [_count_long_floats(layer.attention) for layer in encoder.layers]
    return ActivationSizes(
        token=round(FLOAT_BYTES * ARENA_SHARE * token),
        table=FLOAT_BYTES * max(tables, default=0),
        long_token=FLOAT_BYTES * max(long, default=0),
    )


def _count_token_floats(layer: Layer, hidden: int) -> int:
    """Count the numbers of one token that are in memory at the same time: the residual stream and a branch, with the
    copies that a branch makes at its widest."""
    attention, mlp = layer.attention, layer.mlp
    projected = attention.heads * attention.head_size
    # Joint product, its three parts, the same with each head apart, and the result.
    attending = 2 * hidden + 10 * projected
    if isinstance(mlp, Experts):
        feeding = 4 * hidden + mlp.chosen * (3 * mlp.intermediate + 4 * hidden)
    elif mlp.gated:
        # Gate and up as one product, apart, and activated.
        feeding = 2 * hidden + 5 * mlp.intermediate
    else:
        feeding = 4 * hidden + 2 * mlp.intermediate
    neighbours = 0 if layer.convolution is None else (2 * layer.convolution.kernel + 4) * hidden
    extra = hidden if layer.placement is NormPlacement.SANDWICH else 0
    return extra + max(attending, feeding, neighbours)


def _count_table_floats(attention: Attention, max_positions: int) -> int:
    """Count the scores of the largest group of texts that are attended in one table, with the copies that are made to
    add what depends on distance."""
    scores = attention.heads * min(max_positions, MAX_GROUP_TOKENS) ** 2
    if attention.disentangled is not None:
        return 6 * scores
    if isinstance(attention.distance_bias, RelativeBuckets):
        return 4 * scores
    return scores * 3 // 2 if _has_distances(attention) else 0


def _count_long_floats(attention: Attention) -> int:
    """Count the numbers for each key of a long text: one block's scores, its strip of distances, DeBERTa's keys through
    the whole table."""
    if attention.disentangled is not None:
        positions: Disentangled = attention.disentangled
        return attention.heads * (2 * QUERIES_OF_BLOCK + 2 * positions.span)
    if not _has_distances(attention):
        return 0
    strip = 2 * QUERIES_OF_BLOCK * (1 if attention.distance_bias is None else attention.heads)
    return attention.heads * QUERIES_OF_BLOCK + strip


def _has_distances(attention: Attention) -> bool:
    """Return whether the scores depend on the distance of query and key."""
    return attention.causal or attention.window is not None or attention.distance_bias is not None
