"""Late chunking: vectors of parts of a text, each the mean of its tokens' states, which have seen the whole text.

Source: Guenther et al. 2024, "Late Chunking". Special tokens and a prompt belong to no part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.engines.base import FloatArray, Int32Array

# Code points of the text, the end exclusive.
Span = tuple[int, int]


def members(places: Int32Array, span: Span) -> NDArray[np.intp]:
    """Numbers of the tokens that have a character in the span. places: (tokens, 2), -1 for tokens without a place."""
    start, end = span
    return np.flatnonzero((places[:, 0] < end) & (places[:, 1] > start) & (places[:, 0] >= 0))


def means(hidden: FloatArray, chosen: Sequence[NDArray[np.intp]]) -> FloatArray:
    """hidden: (tokens, size); (parts, size) of the tokens chosen for each part, at least one of each."""
    vectors = np.zeros((len(chosen), hidden.shape[1]), dtype=np.float32)
    for row, tokens in zip(vectors, chosen, strict=True):
        hidden[tokens].mean(axis=0, out=row)
    return vectors
