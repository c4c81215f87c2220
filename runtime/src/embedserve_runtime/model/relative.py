"""Computes what attention adds by the distance of query and key: buckets as T5, MPNet and DeBERTa-v2 count them, and
one table for everything that depends on the distance alone. Pure functions on arrays, shared by the engines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.architecture import Alibi, Attention, Disentangled, RelativeBuckets

Integers = NDArray[np.integer]


def compute_distance_buckets(distance: Integers, scheme: RelativeBuckets) -> Integers:
    """Row of the bias table for distance = key - query.

    Source: `MPNetEncoder.relative_position_bucket` of transformers: the upper half of the buckets is for keys after the
    query; in each half the first half is exact and the rest logarithmic up to max_distance.
    """
    half = scheme.buckets // 2
    exact = half // 2
    after = np.where(distance > 0, half, 0)
    size = np.abs(distance)
    # float32 as in the source: a double would put some distances on the other side of a border.
    logarithm = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        np.log(scheme.max_distance / exact)
    )
    large = np.minimum(exact + (logarithm * np.float32(half - exact)).astype(np.int64), half - 1)
    return after + np.where(size < exact, size, large)


def compute_distance_rows(distance: Integers, scheme: Disentangled) -> Integers:
    """Row of the relative embeddings for distance = query - key, in both of DeBERTa-v2's position terms.

    Source: `make_log_bucket_position` and `disentangled_attention_bias` of transformers: distances up to half of the
    buckets are exact, larger ones logarithmic up to max_distance. Position-to-content negates the distance of key and
    query, which gives the same row, since the buckets are odd in the distance.
    """
    if scheme.buckets:
        exact = scheme.buckets // 2
        size = np.maximum(np.abs(distance), exact - 1)
        # float32 as in the source: a double would put some distances on the other side of a border.
        logarithm = np.log(size.astype(np.float32) / np.float32(exact)) / np.log(
            np.float32((scheme.max_distance - 1) / exact)
        )
        large = np.ceil(logarithm * np.float32(exact - 1)).astype(np.int64) + exact
        distance = np.where(size <= exact, distance, large * np.sign(distance))
    return np.clip(distance + scheme.span, 0, 2 * scheme.span - 1)


def list_distances(max_positions: int) -> Integers:
    """List every distance within a sequence, ascending, which the columns of a table stand for."""
    return np.arange(-(max_positions - 1), max_positions)


def compute_distance_table(
    attention: Attention, max_positions: int, buckets: FloatArray | None
) -> FloatArray | None:
    """Compute what is added to the scores by distance = key - query (causal order, window, ALiBi, learned bias), or
    None.

    Rows are heads (one row when all are alike), columns `list_distances`; what a query must not see
    is -inf. buckets: the parameter `relative_bias.weight`, where the attention has RelativeBuckets.
    """
    distances = list_distances(max_positions)
    table = np.zeros((1, len(distances)), dtype=np.float32)
    match attention.distance_bias:
        case Alibi(slopes):
            table = -np.array(slopes, dtype=np.float32)[:, None] * np.abs(distances).astype(np.float32)
        case RelativeBuckets() as scheme if buckets is not None:
            table = buckets[compute_distance_buckets(distances, scheme)].T
    hidden = np.zeros(len(distances), dtype=np.bool_)
    if attention.causal:
        hidden |= distances > 0
    if attention.window is not None:
        hidden |= np.abs(distances) > attention.window
    if attention.distance_bias is None and not hidden.any():
        return None
    return np.where(hidden, np.float32(-np.inf), table).astype(np.float32, copy=False)
