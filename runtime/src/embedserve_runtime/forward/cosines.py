"""Cosines between the rows of two arrays, for the checks of engines and the measures of parity."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.forward.arrays import FloatArray

Cosines = NDArray[np.float64]


def compute_cosines(left: FloatArray, right: FloatArray) -> Cosines:
    """Return the cosine of each row with the row of the other array. Two rows of zeros are equal: 1; one of them: 0.
    Rows that are not finite are as far apart as can be: -1."""
    left64, right64 = left.astype(np.float64), right.astype(np.float64)
    sizes = np.linalg.norm(left64, axis=1) * np.linalg.norm(right64, axis=1)
    with np.errstate(invalid="ignore"):
        products = (left64 * right64).sum(axis=1) / np.where(sizes == 0, 1, sizes)
    both_empty = ~left64.any(axis=1) & ~right64.any(axis=1)
    result = np.where(both_empty, 1.0, np.where(sizes == 0, 0.0, np.minimum(products, 1)))
    result[~(np.isfinite(left64).all(axis=1) & np.isfinite(right64).all(axis=1))] = -1.0
    return result
