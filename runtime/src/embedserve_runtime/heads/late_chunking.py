"""Late chunking: the vector of a part of a text is the mean of its tokens' states, which have attended to the whole
text.

Source: Guenther et al. 2024, "Late Chunking". Special tokens and the prompt belong to no part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.forward.arrays import FloatArray, Int32Array

# Code points of the text, the end exclusive.
Span = tuple[int, int]


def find_tokens_in_span(offsets: Int32Array, span: Span) -> NDArray[np.intp]:
    """Return the numbers of the tokens that have a character in the span.

    offsets: (tokens, 2), start and end of each token; -1 for tokens outside of the text.
    """
    start, end = span
    return np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 0] >= 0))


def pool_chunks(hidden: FloatArray, chunks: Sequence[NDArray[np.intp]]) -> FloatArray:
    """Pool the hidden states (tokens, size) of each chunk, given by its token numbers, into (chunks, size).

    A chunk has at least one token.
    """
    vectors = np.zeros((len(chunks), hidden.shape[1]), dtype=np.float32)
    for row, tokens in zip(vectors, chunks, strict=True):
        hidden[tokens].mean(axis=0, out=row)
    return vectors
