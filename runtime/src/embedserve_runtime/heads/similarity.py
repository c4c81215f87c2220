"""Scores documents for a query, by pure functions on vectors.

Sources: FlagEmbedding 1.4.2 (dense, sparse and multi-vector scores of BGE-M3), ColBERT (MaxSim).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.outputs import SparseVector
from embedserve_runtime.heads.dense import normalize


def compute_cosine_similarities(query: FloatArray, rows: FloatArray) -> FloatArray:
    """Return the cosine of one vector to each row, float32 within [-1, 1]; 0 where either is a zero vector."""
    products: FloatArray = normalize(rows) @ normalize(query[None])[0]
    return products.clip(-1.0, 1.0)


def compute_sparse_dot_products(query: SparseVector, documents: Iterable[SparseVector]) -> FloatArray:
    """Return the dot product of the query with each document, over the indices that both have; float32,
    (documents,)."""
    products = []
    for document in documents:
        _, query_positions, document_positions = np.intersect1d(
            query.indices, document.indices, assume_unique=True, return_indices=True
        )
        products.append(query.values[query_positions] @ document.values[document_positions])
    return np.array(products, dtype=np.float32)


def compute_max_sim_scores(query: FloatArray, documents: Sequence[FloatArray]) -> FloatArray:
    """Return MaxSim scores: for each query vector its largest product with a document's vectors, summed over the query.

    query: (query tokens, size); documents: (tokens, size) each. float32, (documents,); 0 for a document without
    vectors.
    """
    return np.array(
        [(query @ vectors.T).max(axis=1).sum() if len(vectors) else 0.0 for vectors in documents],
        dtype=np.float32,
    )
