"""DeBERTa-v2's position terms as nodes: what a group adds to its scores (`model.architecture.Disentangled`).

The relative embeddings through a layer's products depend on parameters alone and are computed here, once. A group of
length n takes the 2n rows that stand for its own distances out of them, multiplies, and moves row i of the
(n, 2n) result by i columns, so that distances become keys. Short texts pay for short distances only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedserve_runtime.engines.onnx.nodes import FUSED, GraphWriter
from embedserve_runtime.engines.onnx.parts import Parts
from embedserve_runtime.engines.onnx.shifting import shift_rows
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.architecture import Attention, Disentangled, Norm
from embedserve_runtime.model.relative import compute_distance_rows


@dataclass(frozen=True, slots=True)
class Term:
    """One disentangled term of a layer, in a graph.

    table: initializer (heads, 2 * span, head_size); rows: initializer int64 (2 * max_positions,), the row of each
    distance from -(max_positions - 1) to max_positions; table_rows: 2 * span.
    """

    table: str
    rows: str
    table_rows: int


@dataclass(frozen=True, slots=True)
class DisentangledTerms:
    """The disentangled terms of one layer; None where the description leaves one out."""

    attention: Attention
    max_positions: int
    content_to_position: Term | None
    position_to_content: Term | None

    def write_block(self, body: GraphWriter, query: str, key: str, shape: str) -> str:
        """Write the scaled position scores, (sequences, heads, length, length). query, key: (sequences, length, heads x
        head_size); shape: int64 (sequences, length)."""
        length = body.add("Gather", shape, body.add_integers(1))
        terms = []
        if self.content_to_position is not None:
            terms.append(self._write_by_distance(body, query, self.content_to_position, length))
        if self.position_to_content is not None:
            by_key = self._write_by_distance(body, key, self.position_to_content, length)
            terms.append(body.add("Transpose", by_key, perm=[0, 1, 3, 2]))
        return terms[0] if len(terms) == 1 else body.add("Add", *terms)

    def _write_by_distance(self, body: GraphWriter, values: str, term: Term, length: str) -> str:
        """Entry (i, j): values i times the table's row for the distance j - i."""
        attention, middle = self.attention, body.add_integers(self.max_positions)
        bounds = (body.add("Sub", middle, length), body.add("Add", middle, length))
        rows = body.add("Gather", term.table, body.add("Slice", term.rows, *bounds), axis=1)
        split = body.add("Reshape", values, body.add_integers(0, 0, attention.heads, attention.head_size))
        heads = body.add("Transpose", split, perm=[0, 2, 1, 3])
        products = body.add("FusedMatMul", heads, rows, domain=FUSED, transB=1, alpha=attention.scale)
        shifted = shift_rows(body, products, length, body.add("Add", length, length))
        return body.add("Slice", shifted, body.add_integers(0), length, body.add_integers(3))

    def project_keys(self, body: GraphWriter, key: str) -> str | None:
        """Multiply all keys by all rows of the position queries, scaled: (1, heads, length x rows). None where the
        scheme has no such term. key: (1, length, heads x head_size)."""
        term = self.position_to_content
        return None if term is None else self._write_products(body, key, term)

    def write_rows(
        self, body: GraphWriter, query: str, projected_keys: str | None, bounds: tuple[str, str, str, str]
    ) -> str:
        """Write the terms of some queries of one sequence, (1, heads, queries, keys), scaled.

        query: these queries, (1, queries, heads x head_size). projected_keys: as `project_keys` gives them. bounds: the
        first query, the end of the queries, the first key, the end of the keys, int64 (1,).
        """
        queries, keys = (
            body.add("Range", *(body.add("Squeeze", bound) for bound in pair), body.add_scalar(1))
            for pair in (bounds[:2], bounds[2:])
        )
        queries = body.add("Unsqueeze", queries, body.add_integers(1))
        distances = body.add("Sub", keys, queries)
        offsets = body.add("Add", distances, body.add_integers(self.max_positions - 1))
        terms = []
        if self.content_to_position is not None:
            products = self._write_products(body, query, self.content_to_position)
            own = body.add("Sub", queries, bounds[0])
            terms.append(_pick(body, products, own, self.content_to_position, offsets))
        if self.position_to_content is not None and projected_keys is not None:
            negated = body.add("Sub", body.add_integers(self.max_positions - 1), distances)
            terms.append(_pick(body, projected_keys, keys, self.position_to_content, negated))
        return terms[0] if len(terms) == 1 else body.add("Add", *terms)

    def _write_products(self, body: GraphWriter, values: str, term: Term) -> str:
        """Write the products with the table, (1, n, heads x head_size) to (1, heads, n x rows of the table)."""
        attention = self.attention
        split = body.add("Reshape", values, body.add_integers(0, 0, attention.heads, attention.head_size))
        heads = body.add("Transpose", split, perm=[0, 2, 1, 3])
        products = body.add("FusedMatMul", heads, term.table, domain=FUSED, transB=1, alpha=attention.scale)
        return body.add("Reshape", products, body.add_integers(0, 0, -1))


def _pick(body: GraphWriter, products: str, numbers: str, term: Term, offsets: str) -> str:
    """Entry (h, i, j) is the product of the row `numbers` (i, j) with the table's row for `offsets` (i, j)."""
    first = body.add("Mul", numbers, body.add_integers(term.table_rows))
    return body.add(
        "Gather", products, body.add("Add", first, body.add("Gather", term.rows, offsets)), axis=2
    )


def build_position_terms(
    parts: Parts, attention: Attention, max_positions: int, name: str
) -> DisentangledTerms | None:
    """Build the terms of the layer's attention `name`, None where it has none."""
    scheme = attention.disentangled
    if scheme is None:
        return None
    embeddings = _normalize(parts, parts.weights.read_float32("relative_embeddings.weight"), scheme.norm)
    distances = np.arange(-(max_positions - 1), max_positions + 1)

    def build_term(own: str, shared: str, counted: int) -> Term:
        product = f"{name}.{shared if scheme.shared_projections else own}"
        bias = attention.qkv_bias or not scheme.shared_projections
        projected = _project(parts, embeddings, product, bias, attention)
        rows = compute_distance_rows(counted * distances, scheme)
        return Term(
            parts.graph.add_constant(f"{name}.{own}.rows_of_positions", projected),
            parts.graph.add_constant(_name_rows(scheme, counted), rows.astype(np.int64)),
            2 * scheme.span,
        )

    # The scheme counts query - key: against the distance where values are queries, with it where they are keys.
    return DisentangledTerms(
        attention,
        max_positions,
        content_to_position=build_term("position_key", "key", -1) if scheme.content_to_position else None,
        position_to_content=build_term("position_query", "query", 1) if scheme.position_to_content else None,
    )


def _name_rows(scheme: Disentangled, counted: int) -> str:
    return f"rows_of_distances:{scheme.span}:{scheme.buckets}:{scheme.max_distance}:{counted}"


def _project(
    parts: Parts, embeddings: FloatArray, product: str, bias: bool, attention: Attention
) -> FloatArray:
    """Project relative embeddings to heads, (heads, rows, head_size)."""
    values = embeddings @ parts.weights.read_float32(f"{product}.weight").T
    if bias:
        values = values + parts.weights.read_float32(f"{product}.bias")
    heads: FloatArray = values.reshape(len(values), attention.heads, attention.head_size).transpose(1, 0, 2)
    return heads


def _normalize(parts: Parts, values: FloatArray, norm: Norm | None) -> FloatArray:
    """Apply the layer norm of the relative embeddings."""
    if norm is None:
        return values
    centred = values - values.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + np.float32(norm.eps))
    normed: FloatArray = centred / spread * parts.weights.read_float32("relative_embeddings.norm.weight")
    return normed + parts.weights.read_float32("relative_embeddings.norm.bias") if norm.bias else normed
