"""Self-attention over packed tokens: a loop over groups of sequences of one length.

Before the loop, on packed tokens: the joint query/key/value product, query/key norms, rotary positions. In the loop,
for one group: its rows as a block, one MultiHeadAttention, with a mask only where tokens are hidden from it. Groups are
consecutive in the batch, so their results end to end are packed again.

Everything that depends only on the distance between query and key (causal order, window, ALiBi, learned relative
bias) is one table (`model.relative.distance_table`). A group gathers its (length, length) block from it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from embedserve_runtime.engines.onnx.disentangled import PositionTerms, position_terms
from embedserve_runtime.engines.onnx.nodes import FUSED, GraphWriter
from embedserve_runtime.engines.onnx.parts import Parts
from embedserve_runtime.model.architecture import Attention, QkNormScope, RelativeBuckets, Rotary
from embedserve_runtime.model.relative import distance_table


@dataclass(frozen=True, slots=True)
class Columns:
    """Some columns of a packed value (tokens, columns): `first` to `end`, or all where `end` is None."""

    value: str
    first: int = 0
    end: int | None = None


def attention(parts: Parts, hidden: str, layer: Attention, max_tokens: int, name: str) -> str:
    """Packed (tokens, hidden) to packed (tokens, heads x head_size), before the output product."""
    graph = parts.graph
    heads = _heads(parts, hidden, layer, max_tokens, name)
    table = _distance_table(parts, layer, max_tokens)
    positions = position_terms(parts, layer, max_tokens, name)
    body = _one_group(parts, heads, layer, max_tokens, table=table, positions=positions)
    collected = graph.add("Loop", "groups", "", graph.add("SequenceEmpty"), body=body)
    return graph.add("ConcatFromSequence", collected, axis=0)


def _heads(parts: Parts, hidden: str, layer: Attention, max_tokens: int, name: str) -> list[Columns]:
    """Queries, keys and values, each (tokens, heads x head_size): norms and rotary positions applied, key/value heads
    repeated."""
    graph = parts.graph
    joint = parts.product(hidden, [f"{name}.{p}" for p in ("query", "key", "value")], layer.qkv_bias)
    inner, kv_inner = layer.heads * layer.head_size, layer.kv_heads * layer.head_size
    if not (layer.qk_norm or layer.rotary or layer.kv_heads != layer.heads):
        return [Columns(joint, number * inner, (number + 1) * inner) for number in range(3)]
    query, key, value = graph.add_many(
        "Split", joint, graph.integers(inner, kv_inner, kv_inner), outputs=3, axis=1
    )
    if layer.qk_norm is not None:
        query = _head_norm(parts, query, layer, f"{name}.query_norm")
        key = _head_norm(parts, key, layer, f"{name}.key_norm")
    if layer.rotary is not None:
        query = _rotated(graph, query, layer.rotary, layer.heads, max_tokens)
        key = _rotated(graph, key, layer.rotary, layer.kv_heads, max_tokens)
    if layer.kv_heads != layer.heads:
        key, value = _repeated(graph, key, layer), _repeated(graph, value, layer)
    return [Columns(query), Columns(key), Columns(value)]


def _head_norm(parts: Parts, value: str, layer: Attention, name: str) -> str:
    if layer.qk_norm is None:
        return value
    if layer.qk_norm.scope is QkNormScope.ALL:
        return parts.norm(value, layer.qk_norm.norm, name)
    graph = parts.graph
    # Every (token, head) is a row of its own for the norm; the width comes back from the row count of the input.
    rows = graph.add("Reshape", value, graph.integers(-1, layer.head_size))
    normed = parts.norm(rows, layer.qk_norm.norm, name)
    return graph.add("Reshape", normed, graph.add("Shape", value))


def _rotated(graph: GraphWriter, value: str, rotary: Rotary, heads: int, max_tokens: int) -> str:
    """Packed (tokens, heads x head_size). Each token is a batch of one, since the operator's own limit on the
    sequence axis is the length of the table, which a packed batch may exceed."""
    frequencies = np.array(rotary.inverse_frequencies, dtype=np.float32)
    angles = np.arange(max_tokens, dtype=np.float32)[:, None] * frequencies
    key = f"rotary:{hashlib.sha256(angles.tobytes()).hexdigest()[:16]}:{rotary.scaling}"
    scaling = np.float32(rotary.scaling)
    cos = graph.constant(f"{key}:cos", np.cos(angles) * scaling)
    sin = graph.constant(f"{key}:sin", np.sin(angles) * scaling)
    turned = graph.add(
        "RotaryEmbedding",
        graph.add("Unsqueeze", value, graph.integers(1)),
        graph.add("Unsqueeze", "positions", graph.integers(1)),
        *(cos, sin),
        domain=FUSED,
        num_heads=heads,
        rotary_embedding_dim=2 * len(frequencies),
    )
    return graph.add("Squeeze", turned, graph.integers(1))


def _repeated(graph: GraphWriter, value: str, layer: Attention) -> str:
    """(tokens, kv_heads x head_size) to (tokens, heads x head_size): query head h reads h // (heads // kv_heads)."""
    groups = layer.heads // layer.kv_heads
    heads = graph.add("Reshape", value, graph.integers(-1, layer.kv_heads, 1, layer.head_size))
    expanded = graph.add("Expand", heads, graph.integers(1, 1, groups, 1))
    return graph.add("Reshape", expanded, graph.integers(-1, layer.heads * layer.head_size))


def _distance_table(parts: Parts, layer: Attention, max_tokens: int) -> str | None:
    """The initialiser of the table of distances, one for all layers of the same form."""
    learned = isinstance(layer.distance_bias, RelativeBuckets)
    buckets = parts.weights.float32("relative_bias.weight") if learned else None
    table = distance_table(layer, max_tokens, buckets)
    if table is None:
        return None
    form = (layer.causal, layer.window, layer.distance_bias)
    return parts.graph.constant(f"distance:{hashlib.sha256(repr(form).encode()).hexdigest()[:16]}", table)


def _one_group(
    parts: Parts,
    heads: list[Columns],
    layer: Attention,
    max_tokens: int,
    *,
    table: str | None,
    positions: PositionTerms | None,
) -> onnx.GraphProto:
    """The loop's body: (number, keep going, results so far) to (keep going, results and this group's)."""
    outer = parts.graph
    body = outer.subgraph()
    number, keep_going, collected = body.fresh("number"), body.fresh("keep_going"), body.fresh("collected")
    shape = body.add("Gather", "shapes", number)

    def block(columns: Columns) -> str:
        bounds = [body.add("Gather", name, number) for name in _bounds(outer, columns)]
        return body.add("Reshape", body.add("Slice", columns.value, *bounds), shape)

    query, key, value = map(block, heads)
    seen = ""
    if parts.hides_tokens:
        seen = body.add(
            "Slice", "attended", *(body.add("Gather", name, number) for name in ("firsts", "lasts"))
        )
    inputs = [query, key, value, "", seen]
    added = [] if table is None else [_block_of_distances(body, table, shape, max_tokens)]
    if positions is not None:
        added.append(positions.block(body, query, key, shape))
    if added:
        inputs.append(added[0] if len(added) == 1 else body.add("Add", *added))
    attended = body.add("MultiHeadAttention", *inputs, domain=FUSED, num_heads=layer.heads, scale=layer.scale)
    grown = body.add(
        "SequenceInsert",
        collected,
        body.add("Reshape", attended, body.integers(-1, layer.heads * layer.head_size)),
    )
    still = body.add("Identity", keep_going)
    return helper.make_graph(
        body.nodes,
        "one_group",
        [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(keep_going, TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info(collected, TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info(still, TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info(grown, TensorProto.FLOAT, None),
        ],
    )


def _bounds(graph: GraphWriter, columns: Columns) -> tuple[str, str]:
    """Where the groups start and end, with the columns: int64 (groups, 1 or 2). Equal ones are one after ONNX Runtime's
    own clean-up."""
    if columns.end is None:
        return "starts", "ends"
    behind = graph.integers(0, 0, 0, 1)
    first, end = graph.scalar(columns.first), graph.scalar(columns.end)
    return graph.add("Pad", "starts", behind, first), graph.add("Pad", "ends", behind, end)


def _block_of_distances(body: GraphWriter, table: str, shape: str, max_tokens: int) -> str:
    """The group's part of the table, (1, heads or 1, length, length)."""
    length = body.add("Gather", shape, body.scalar(1))
    positions = body.add("Range", body.scalar(0), length, body.scalar(1))
    keys = body.add("Unsqueeze", positions, body.integers(0))
    queries = body.add("Unsqueeze", positions, body.integers(1))
    columns = body.add("Add", body.add("Sub", keys, queries), body.integers(max_tokens - 1))
    return body.add("Unsqueeze", body.add("Gather", table, columns, axis=1), body.integers(0))
