"""Self-attention over packed tokens, before its output product: the fused QKV product, query/key norms and
rotary positions on packed tokens, then calls of attention for sequences of one length (`attention_calls`).

Everything that depends only on the distance between query and key (causal order, window, ALiBi, learned relative
bias) is one table (`model.relative.compute_distance_table`). What the longest sequences of a batch need of it is
gathered once, for all layers of that form.
"""

from __future__ import annotations

import hashlib

import numpy as np

from embedserve_runtime.engines.onnx.attention_blocks import (
    BLOCK_TOKENS,
    MAX_TOKENS_IN_ONE_TABLE,
    AttentionInBlocks,
    DistanceTable,
)
from embedserve_runtime.engines.onnx.attention_calls import (
    QKV,
    AttentionCall,
    FusedQKV,
    add_attention_calls,
)
from embedserve_runtime.engines.onnx.disentangled import build_position_terms
from embedserve_runtime.engines.onnx.nodes import FUSED, GraphWriter
from embedserve_runtime.engines.onnx.parts import Parts
from embedserve_runtime.model.architecture import Attention, QkNormScope, RelativeBuckets, Rotary
from embedserve_runtime.model.relative import compute_distance_table


def write_attention(parts: Parts, hidden: str, layer: Attention, max_positions: int, name: str) -> str:
    """Write attention before its output product, packed (tokens, hidden) to packed (tokens, heads x head_size)."""
    heads = _write_heads(parts, hidden, layer, max_positions, name)
    table = _add_distance_table(parts, layer, max_positions)
    positions = build_position_terms(parts, layer, max_positions, name)
    is_in_blocks = max_positions > MAX_TOKENS_IN_ONE_TABLE
    call = AttentionCall(
        layer,
        distances=None if table is None else _write_distance_block(parts.graph, table),
        positions=positions,
        in_blocks=AttentionInBlocks(layer, table, positions) if is_in_blocks else None,
        has_attention_mask=parts.has_attention_mask,
    )
    return add_attention_calls(parts.graph, heads, call)


def _write_heads(parts: Parts, hidden: str, layer: Attention, max_positions: int, name: str) -> QKV:
    """Write queries, keys and values, each (tokens, heads x head_size): norms and rotary positions applied, key/value
    heads repeated."""
    graph = parts.graph
    qkv = parts.write_product(hidden, [f"{name}.{p}" for p in ("query", "key", "value")], layer.qkv_bias)
    inner, kv_inner = layer.heads * layer.head_size, layer.kv_heads * layer.head_size
    is_plain = layer.qk_norm is None and layer.rotary is None and layer.value_norm_eps is None
    if is_plain and layer.kv_heads == layer.heads:
        return FusedQKV(qkv, inner)
    query, key, value = graph.add_many(
        "Split", qkv, graph.add_integers(inner, kv_inner, kv_inner), outputs=3, axis=1
    )
    if layer.qk_norm is not None:
        query = _write_head_norm(parts, query, layer, f"{name}.query_norm")
        key = _write_head_norm(parts, key, layer, f"{name}.key_norm")
    if layer.value_norm_eps is not None:
        ones = graph.add_constant(f"ones:{layer.head_size}", np.ones(layer.head_size, dtype=np.float32))
        rows = graph.add("Reshape", value, graph.add_integers(-1, layer.head_size))
        normed = graph.add("SimplifiedLayerNormalization", rows, ones, axis=-1, epsilon=layer.value_norm_eps)
        value = graph.add("Reshape", normed, graph.add_integers(-1, kv_inner))
    if layer.rotary is not None:
        query = _write_rotation(graph, query, layer.rotary, layer.heads, max_positions)
        key = _write_rotation(graph, key, layer.rotary, layer.kv_heads, max_positions)
    if layer.kv_heads != layer.heads:
        key, value = _write_repeated_heads(graph, key, layer), _write_repeated_heads(graph, value, layer)
    return query, key, value


def _write_head_norm(parts: Parts, value: str, layer: Attention, name: str) -> str:
    if layer.qk_norm is None:
        return value
    if layer.qk_norm.scope is QkNormScope.ALL:
        return parts.write_norm(value, layer.qk_norm.norm, name)
    graph = parts.graph
    # Every (token, head) is a row of its own for the norm; the width comes back from the row count of the input.
    rows = graph.add("Reshape", value, graph.add_integers(-1, layer.head_size))
    normed = parts.write_norm(rows, layer.qk_norm.norm, name)
    return graph.add("Reshape", normed, graph.add("Shape", value))


def _write_rotation(graph: GraphWriter, value: str, rotary: Rotary, heads: int, max_positions: int) -> str:
    """Write the rotation of packed (tokens, heads x head_size). Each token is a batch of one, since the operator's own
    limit on the sequence axis is the length of the table, which a packed batch may exceed."""
    frequencies = np.array(rotary.inverse_frequencies, dtype=np.float32)
    angles = np.arange(max_positions, dtype=np.float32)[:, None] * frequencies
    key = f"rotary:{hashlib.sha256(angles.tobytes()).hexdigest()[:16]}:{rotary.scaling}"
    scaling = np.float32(rotary.scaling)
    cos = graph.add_constant(f"{key}:cos", np.cos(angles) * scaling)
    sin = graph.add_constant(f"{key}:sin", np.sin(angles) * scaling)
    rotated = graph.add(
        "RotaryEmbedding",
        graph.add("Unsqueeze", value, graph.add_integers(1)),
        graph.add("Unsqueeze", "positions", graph.add_integers(1)),
        *(cos, sin),
        domain=FUSED,
        num_heads=heads,
        rotary_embedding_dim=2 * len(frequencies),
    )
    return graph.add("Squeeze", rotated, graph.add_integers(1))


def _write_repeated_heads(graph: GraphWriter, value: str, layer: Attention) -> str:
    """Repeat heads, (tokens, kv_heads x head_size) to (tokens, heads x head_size): query head h reads h // (heads //
    kv_heads)."""
    groups = layer.heads // layer.kv_heads
    heads = graph.add("Reshape", value, graph.add_integers(-1, layer.kv_heads, 1, layer.head_size))
    expanded = graph.add("Expand", heads, graph.add_integers(1, 1, groups, 1))
    return graph.add("Reshape", expanded, graph.add_integers(-1, layer.heads * layer.head_size))


def _add_distance_table(parts: Parts, layer: Attention, max_positions: int) -> DistanceTable | None:
    """Add the table of distances, one for all layers of the same form."""
    learned = isinstance(layer.distance_bias, RelativeBuckets)
    buckets = parts.weights.read_float32("relative_bias.weight") if learned else None
    # The last block of a sequence may reach that far beyond its end.
    tokens = max_positions + BLOCK_TOKENS if max_positions > MAX_TOKENS_IN_ONE_TABLE else max_positions
    table = compute_distance_table(layer, tokens, buckets)
    if table is None:
        return None
    form = (layer.causal, layer.window, layer.distance_bias)
    name = f"distance:{hashlib.sha256(repr(form).encode()).hexdigest()[:16]}"
    return DistanceTable(parts.graph.add_constant(name, table), tokens)


def _write_distance_block(graph: GraphWriter, table: DistanceTable) -> str:
    """Write the part of the table, (1, heads or 1, longest, longest), for the longest sequences of the batch that are
    not attended in blocks. That of a shorter one is its corner. Equal nodes of several layers are one after ONNX
    Runtime's own clean-up."""
    lengths = graph.add("Gather", "shapes", graph.add_scalar(1), axis=1)
    longest = graph.add("ReduceMax", lengths, keepdims=0)
    longest = graph.add("Min", longest, graph.add_scalar(MAX_TOKENS_IN_ONE_TABLE))
    positions = graph.add("Range", graph.add_scalar(0), longest, graph.add_scalar(1))
    keys = graph.add("Unsqueeze", positions, graph.add_integers(0))
    queries = graph.add("Unsqueeze", positions, graph.add_integers(1))
    columns = graph.add("Add", graph.add("Sub", keys, queries), graph.add_integers(table.tokens - 1))
    return graph.add("Unsqueeze", graph.add("Gather", table.name, columns, axis=1), graph.add_integers(0))
