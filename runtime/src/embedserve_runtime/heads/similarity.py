"""Cosine similarities of rows."""

from __future__ import annotations

from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.heads.dense import normalize


def cosines(query: FloatArray, rows: FloatArray) -> FloatArray:
    """Of one vector to each row, float32 within [-1, 1]; 0 where either is a zero vector."""
    products: FloatArray = normalize(rows) @ normalize(query[None])[0]
    return products.clip(-1.0, 1.0)
