"""Attention of one long sequence in blocks of queries, so that no table of length x length is ever in memory.

A block has the scores of its own queries, for the keys that these can see: with a window those around the block, in
causal order those up to its end. What is added by distance is the same for every block but for where it begins: one
strip of a block's rows, of which each block takes the columns that belong to its keys.

Where nothing is added to the scores `MultiHeadAttention` works in such blocks itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from embedserve_runtime.engines.onnx.disentangled import DisentangledTerms
from embedserve_runtime.engines.onnx.nodes import FUSED, GraphWriter, add_loop
from embedserve_runtime.engines.onnx.shifting import shift_rows
from embedserve_runtime.forward.grouping import MAX_GROUP_TOKENS
from embedserve_runtime.model.architecture import Attention

# A longer sequence is alone in its group, which the blocks rely on.
MAX_TOKENS_IN_ONE_TABLE = MAX_GROUP_TOKENS
# Queries of a block. Measured with 12 heads of 64 and 2,048 tokens: 64, 128 and 256 take the same time, and of a window
# of 64 a block reads twice its own keys, with 256 three times as many as a query sees.
BLOCK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class DistanceTable:
    """A table of score terms by distance, in a graph.

    name: initializer (heads or 1, 2 * tokens - 1), for the distances of `model.relative.list_distances(tokens)`.
    """

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class AttentionInBlocks:
    """Attention on one sequence, as nodes. distances: what is added to the scores by the distance of query and key;
    positions: what depends on queries and keys too."""

    layer: Attention
    distances: DistanceTable | None
    positions: DisentangledTerms | None

    def add(self, body: GraphWriter, heads: Sequence[str], length: str, attended_lengths: str) -> str:
        """Add the nodes; their result is (1, length, heads x head_size).

        heads: queries, keys and values, (1, length, columns). length: int64 (1,). attended_lengths: how many leading
        tokens attention sees, int32 (1,), empty for all.
        """
        if self.distances is None and self.positions is None and self.layer.soft_cap is None:
            return self._add_streamed(body, heads, attended_lengths)
        sequence = _Sequence.write(body, self, heads, length, attended_lengths)
        block = body.add_integers(BLOCK_TOKENS)
        filled = body.add("Add", length, body.add_integers(BLOCK_TOKENS - 1))
        count = body.add("Squeeze", body.add("Div", filled, block))
        return add_loop(body, count, sequence.write_block, axis=1, name="block_of_queries")

    def _add_streamed(self, body: GraphWriter, heads: Sequence[str], attended_lengths: str) -> str:
        query, *rest = heads
        if attended_lengths:
            end = body.add("Cast", attended_lengths, to=TensorProto.INT64)
            bounds = (body.add_integers(0), end, body.add_integers(1))
            rest = [body.add("Slice", value, *bounds) for value in rest]
        return body.add(
            "MultiHeadAttention",
            *(query, *rest),
            domain=FUSED,
            num_heads=self.layer.heads,
            scale=self.layer.scale,
        )


@dataclass(frozen=True, slots=True)
class _Sequence:
    """The values that all blocks of a sequence read from outside the loop. back, ahead: how many tokens before and
    after itself a query sees at most, int64 (1,). strip: (1, heads or 1, block, back + block + ahead or more), what is
    added by distance. hidden_keys: (1, 1, 1, length). projected_keys: see `DisentangledTerms.project_keys`."""

    layer: Attention
    heads: Sequence[str]
    length: str
    back: str
    ahead: str
    strip: str | None
    hidden_keys: str | None
    positions: DisentangledTerms | None
    projected_keys: str | None

    @classmethod
    def write(
        cls,
        body: GraphWriter,
        call: AttentionInBlocks,
        heads: Sequence[str],
        length: str,
        attended_lengths: str,
    ) -> _Sequence:
        layer, positions = call.layer, call.positions
        back = body.add("Sub", length, body.add_integers(1))
        if layer.window is not None:
            back = body.add("Min", back, body.add_integers(layer.window))
        ahead = body.add_integers(0) if layer.causal else back
        return cls(
            layer,
            heads,
            length,
            back,
            ahead,
            strip=None if call.distances is None else _write_strip(body, call.distances, back, ahead),
            hidden_keys=write_hidden_keys(body, length, attended_lengths) if attended_lengths else None,
            positions=positions,
            projected_keys=None if positions is None else positions.project_keys(body, heads[1]),
        )

    def write_block(self, body: GraphWriter, number: str) -> str:
        """Write the block of this number, (1, queries of the block, heads x head_size)."""
        query, key, value = self.heads
        start = body.add("Mul", number, body.add_integers(BLOCK_TOKENS))
        end = body.add("Min", body.add("Add", start, body.add_integers(BLOCK_TOKENS)), self.length)
        query = body.add("Slice", query, start, end, body.add_integers(1))
        first, last = body.add_integers(0), self.length
        if self.layer.window is not None:
            first = body.add("Max", body.add("Sub", start, self.back), first)
        if self.layer.window is not None or self.layer.causal:
            last = body.add("Min", body.add("Add", end, self.ahead), last)
            key, value = (
                body.add("Slice", tensor, first, last, body.add_integers(1)) for tensor in (key, value)
            )
        added = []
        if self.strip is not None:
            shift = body.add("Sub", self.back, start)
            columns = [body.add("Add", bound, shift) for bound in (first, last)]
            begin = body.add("Concat", body.add_integers(0), columns[0], axis=0)
            finish = body.add("Concat", body.add("Sub", end, start), columns[1], axis=0)
            added.append(body.add("Slice", self.strip, begin, finish, body.add_integers(2, 3)))
        if self.positions is not None:
            bounds = (start, end, first, last)
            added.append(self.positions.write_rows(body, query, self.projected_keys, bounds))
        hidden = self.hidden_keys
        if hidden is not None:
            hidden = body.add("Slice", hidden, first, last, body.add_integers(3))
        return write_scored_attention(body, self.layer, (query, key, value), added, hidden)


def write_scored_attention(
    body: GraphWriter, layer: Attention, heads: Sequence[str], added: Sequence[str], hidden_keys: str | None
) -> str:
    """Add attention that has all scores in memory; its result is (sequences, queries, heads x head_size).

    heads: queries, keys and values. added: what is added to the scores after their cap, (1 or sequences, 1 or heads,
    queries, keys) each. hidden_keys: as `write_hidden_keys` gives them. A query that sees no key gets zeros.
    """
    terms = [*added]
    if hidden_keys is not None:
        # The operator broadcasts over sequences and heads, not over queries.
        terms.append(hidden_keys if added else _repeat_for_queries(body, hidden_keys, heads[0]))
    bias = terms[0] if terms else ""
    for more in terms[1:]:
        bias = body.add("Add", bias, more)
    cap: dict[str, Any] = {} if layer.soft_cap is None else {"softcap": layer.soft_cap}
    return body.add(
        "Attention",
        *(*heads, bias),
        q_num_heads=layer.heads,
        kv_num_heads=layer.heads,
        scale=layer.scale,
        **cap,
    )


def _repeat_for_queries(body: GraphWriter, hidden_keys: str, query: str) -> str:
    """Repeat a bias of keys for each query, (sequences, 1, 1, keys) to (sequences, 1, queries, keys)."""
    count = body.add("Shape", query, start=1, end=2)
    shape = body.add("Concat", body.add_integers(1, 1), count, body.add_integers(1), axis=0)
    return body.add("Expand", hidden_keys, shape)


def _write_strip(body: GraphWriter, table: DistanceTable, back: str, ahead: str) -> str:
    """Entry (i, c) of the strip is the table's for the distance c - back - i."""
    rows = body.add_integers(BLOCK_TOKENS)
    width = body.add("Add", body.add("Add", back, ahead), body.add_integers(2 * BLOCK_TOKENS))
    start = body.add("Sub", body.add_integers(table.tokens - BLOCK_TOKENS), back)
    row = body.add("Slice", table.name, start, body.add("Add", start, width), body.add_integers(1))
    row = body.add("Unsqueeze", row, body.add_integers(0, 2))
    return shift_rows(body, body.add("Expand", row, body.add_integers(1, 1, BLOCK_TOKENS, 1)), rows, width)


def write_hidden_keys(body: GraphWriter, length: str, attended_lengths: str) -> str:
    """Write a mask that hides the keys that attention does not see: 0 or -inf, (sequences, 1, 1, length). length: int64
    (1,)."""
    key_positions = body.add("Range", body.add_scalar(0), body.add("Squeeze", length), body.add_scalar(1))
    ends = body.add(
        "Unsqueeze", body.add("Cast", attended_lengths, to=TensorProto.INT64), body.add_integers(1)
    )
    is_seen = body.add("Less", key_positions, ends)
    zero, never = (
        body.add_constant(name, np.array([value], dtype=np.float32))
        for name, value in (("zero", 0.0), ("never", -np.inf))
    )
    return body.add("Unsqueeze", body.add("Where", is_seen, zero, never), body.add_integers(1, 2))
