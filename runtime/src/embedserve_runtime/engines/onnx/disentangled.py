"""DeBERTa-v2's position terms as nodes: what a group adds to its scores (`model.architecture.Disentangled`).

The relative embeddings through a layer's products depend on parameters alone and are computed here, once. A group of
length n takes the 2n rows that stand for its own distances out of them, multiplies, and moves row i of the
(n, 2n) result by i places, so that distances become keys. Short texts pay for short distances only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.engines.onnx.nodes import FUSED, GraphWriter
from embedserve_runtime.engines.onnx.parts import Parts
from embedserve_runtime.model.architecture import Attention, Disentangled, Norm
from embedserve_runtime.model.relative import compute_distance_rows


@dataclass(frozen=True, slots=True)
class Term:
    """table: initialiser (heads, 2 * span, head_size); rows: initialiser int64 (2 * max_tokens,), the row of each
    distance from -(max_tokens - 1) to max_tokens."""

    table: str
    rows: str


@dataclass(frozen=True, slots=True)
class PositionTerms:
    """The terms of one layer; None where the description leaves one out."""

    attention: Attention
    max_tokens: int
    content_to_position: Term | None
    position_to_content: Term | None

    def write_block(self, body: GraphWriter, query: str, key: str, shape: str) -> str:
        """(sequences, heads, length, length), scaled. query, key: (sequences, length, heads x head_size); shape:
        int64 (sequences, length)."""
        length = body.add("Gather", shape, body.add_integers(1))
        found = []
        if self.content_to_position is not None:
            found.append(self._write_by_distance(body, query, self.content_to_position, length))
        if self.position_to_content is not None:
            by_key = self._write_by_distance(body, key, self.position_to_content, length)
            found.append(body.add("Transpose", by_key, perm=[0, 1, 3, 2]))
        return found[0] if len(found) == 1 else body.add("Add", *found)

    def _write_by_distance(self, body: GraphWriter, values: str, term: Term, length: str) -> str:
        """Entry (i, j): values i times the table's row for the distance j - i."""
        attention, middle = self.attention, body.add_integers(self.max_tokens)
        bounds = (body.add("Sub", middle, length), body.add("Add", middle, length))
        rows = body.add("Gather", term.table, body.add("Slice", term.rows, *bounds), axis=1)
        split = body.add("Reshape", values, body.add_integers(0, 0, attention.heads, attention.head_size))
        heads = body.add("Transpose", split, perm=[0, 2, 1, 3])
        products = body.add("FusedMatMul", heads, rows, domain=FUSED, transB=1, alpha=attention.scale)
        return _shift(body, products, length)


def _shift(body: GraphWriter, products: str, length: str) -> str:
    """(..., n, 2n) to (..., n, n): entry (i, j) is (i, j - i + n - 1).

    Read row after row that is place i * (2n - 1) + j + n - 1: rows of 2n - 1 from place n - 1 on.
    """
    one, twice = body.add_integers(1), body.add("Add", length, length)
    narrow = body.add("Sub", twice, one)
    flat = body.add("Reshape", products, body.add_integers(0, 0, -1))
    start = body.add("Sub", length, one)
    end = body.add("Add", start, body.add("Mul", length, narrow))
    cut = body.add("Slice", flat, start, end, body.add_integers(2))
    shape = body.add("Concat", body.add_integers(0, 0), length, narrow, axis=0)
    rows = body.add("Reshape", cut, shape)
    return body.add("Slice", rows, body.add_integers(0), length, body.add_integers(3))


def build_position_terms(
    parts: Parts, attention: Attention, max_tokens: int, name: str
) -> PositionTerms | None:
    """The terms of the layer's attention `name`, None where it has none."""
    scheme = attention.disentangled
    if scheme is None:
        return None
    embeddings = _normalize(parts, parts.weights.read_float32("relative_embeddings.weight"), scheme.norm)
    distances = np.arange(-(max_tokens - 1), max_tokens + 1)

    def build_term(own: str, shared: str, counted: int) -> Term:
        product = f"{name}.{shared if scheme.shared_projections else own}"
        bias = attention.qkv_bias or not scheme.shared_projections
        projected = _project(parts, embeddings, product, bias, attention)
        rows = compute_distance_rows(counted * distances, scheme)
        return Term(
            parts.graph.add_constant(f"{name}.{own}.rows_of_positions", projected),
            parts.graph.add_constant(_name_rows(scheme, counted), rows.astype(np.int64)),
        )

    # The scheme counts query - key: against the distance where values are queries, with it where they are keys.
    return PositionTerms(
        attention,
        max_tokens,
        content_to_position=build_term("position_key", "key", -1) if scheme.content_to_position else None,
        position_to_content=build_term("position_query", "query", 1) if scheme.position_to_content else None,
    )


def _name_rows(scheme: Disentangled, counted: int) -> str:
    return f"rows_of_distances:{scheme.span}:{scheme.buckets}:{scheme.max_distance}:{counted}"


def _project(
    parts: Parts, embeddings: FloatArray, product: str, bias: bool, attention: Attention
) -> FloatArray:
    """(heads, rows, head_size)."""
    values = embeddings @ parts.weights.read_float32(f"{product}.weight").T
    if bias:
        values = values + parts.weights.read_float32(f"{product}.bias")
    heads: FloatArray = values.reshape(len(values), attention.heads, attention.head_size).transpose(1, 0, 2)
    return heads


def _normalize(parts: Parts, values: FloatArray, norm: Norm | None) -> FloatArray:
    """The layer norm of the relative embeddings."""
    if norm is None:
        return values
    centred = values - values.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + np.float32(norm.eps))
    normed: FloatArray = centred / spread * parts.weights.read_float32("relative_embeddings.norm.weight")
    return normed + parts.weights.read_float32("relative_embeddings.norm.bias") if norm.bias else normed
