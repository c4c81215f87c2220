"""How well documents answer a query: pure functions on what heads give. Sources: FlagEmbedding 1.4.2 (dense, sparse,
multi-vector scores of BGE-M3), ColBERT (MaxSim)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.engines.results import SparseVector
from embedserve_runtime.heads.dense import normalize


def cosines(query: FloatArray, rows: FloatArray) -> FloatArray:
    """Return the cosine of one vector to each row, float32 within [-1, 1]; 0 where either is a zero vector."""
    products: FloatArray = normalize(rows) @ normalize(query[None])[0]
    return products.clip(-1.0, 1.0)


def sparse_products(query: SparseVector, documents: Iterable[SparseVector]) -> FloatArray:
    """Sums of the products of weights over the indices that both have; float32, one a document."""
    products = []
    for document in documents:
        _, ours, theirs = np.intersect1d(
            query.indices, document.indices, assume_unique=True, return_indices=True
        )
        products.append(query.values[ours] @ document.values[theirs])
    return np.array(products, dtype=np.float32)


def max_similarities(query: FloatArray, documents: Sequence[FloatArray]) -> FloatArray:
    """MaxSim: for each query vector its largest product with a document's vectors, summed over the query.

    query: (query tokens, size); documents: (tokens, size) each. float32, one a document; 0 for one without vectors.
    """
    return np.array(
        [(query @ one.T).max(axis=1).sum() if len(one) else 0.0 for one in documents], dtype=np.float32
    )
