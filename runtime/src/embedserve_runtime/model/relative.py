"""Buckets of relative distances, as T5, MPNet and DeBERTa-v2 count them. Pure functions on integer arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.model.architecture import RelativeBuckets

Integers = NDArray[np.integer]


def bucket_of_distance(distance: Integers, scheme: RelativeBuckets) -> Integers:
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
