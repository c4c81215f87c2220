"""Averages the rows of a text's tokens, in one pass over the tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from embedserve_runtime.loops.jit import loop

# The number of rows that are added at a time.
ROWS_AT_ONCE = 4
# The type of a table as it is stored, float16 as uint16, and the type of sums and weights.
_PAIRS = (
    ("float32", "float32"),
    ("float32", "float64"),
    ("float64", "float64"),
    ("int8", "float32"),
    ("int8", "float64"),
    ("uint16", "float32"),
    ("uint16", "float64"),
)
_SIGNATURES = [
    f"int64(int32[::1], int32[::1], Array({table}, 2, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), "
    f"Array({added}, 1, 'C', readonly=True), int64, int64, float32[:, ::1])"
    for table, added in _PAIRS
]


def _widen(value: Any) -> Any:
    """Return a number of a table; for the bits of a float16, the float32 of the same value."""
    raise NotImplementedError("compiled only")


@overload(_widen, strict=False)  # type: ignore[untyped-decorator]  # numba has no types
def _widen_as(value: Any) -> Any:
    if value != types.uint16:
        return lambda value: value

    def half(value: Any) -> Any:
        # Shifted into place as float32 it is too small by 2^112, exactly, subnormal or not.
        shifted = np.uint32(value & 0x7FFF) << np.uint32(13)
        if value & 0x7C00 == 0x7C00:  # infinity, or not a number
            shifted |= np.uint32(0x7F800000)
            size = np.uint32(shifted).view(np.float32)
        else:
            size = np.uint32(shifted).view(np.float32) * np.float32(2.0**112)
        return -size if value & 0x8000 else size

    return half


@loop()
def _add(table: NDArray[Any], row: int, factor: Any, sums: NDArray[Any]) -> None:
    for column in range(len(sums)):
        sums[column] += sums.dtype.type(_widen(table[row, column])) * factor


@loop()
def _add_all(table: NDArray[Any], rows: NDArray[np.int64], factors: NDArray[Any], sums: NDArray[Any]) -> None:
    """Add ROWS_AT_ONCE rows, one after another in each column: sums are read and written once for all of them."""
    a, b, c, d = rows[0], rows[1], rows[2], rows[3]
    times_a, times_b, times_c, times_d = factors[0], factors[1], factors[2], factors[3]
    for column in range(len(sums)):
        total = sums[column] + sums.dtype.type(_widen(table[a, column])) * times_a
        total += sums.dtype.type(_widen(table[b, column])) * times_b
        total += sums.dtype.type(_widen(table[c, column])) * times_c
        sums[column] = total + sums.dtype.type(_widen(table[d, column])) * times_d


@loop(*_SIGNATURES)
def means(
    ids: NDArray[np.int32],
    bounds: NDArray[np.int32],
    table: NDArray[Any],
    mapping: NDArray[np.int64],
    weights: NDArray[Any],
    vocabulary: int,
    unknown: int,
    into: NDArray[np.float32],
) -> int:
    """Write the mean of the rows of each text's ids, added in their order; zeros for a text without any.

    bounds: text i is ids[bounds[i]:bounds[i + 1]]. mapping: the row of each id, empty where it is the id; weights: the
    factor of each id, empty where there is none. Ids from `vocabulary` on, and `unknown`, do not count.
    into: (texts, dimensions). Stops at the first negative id and returns its place, else -1.
    """
    sums = np.empty(table.shape[1], dtype=weights.dtype)
    # Rows and factors that have not been added yet.
    rows, factors = np.empty(ROWS_AT_ONCE, dtype=np.int64), np.empty(ROWS_AT_ONCE, dtype=weights.dtype)
    for text in range(len(bounds) - 1):
        # Less than zero, since adding that leaves a first row as it is, also its zeros of either sign.
        sums[:] = -0.0
        count = waiting = 0
        for place in range(bounds[text], bounds[text + 1]):
            token = ids[place]
            if token < 0:
                return place
            if token >= vocabulary or token == unknown:
                continue
            rows[waiting] = mapping[token] if len(mapping) else token
            factors[waiting] = weights[token] if len(weights) else 1
            count, waiting = count + 1, waiting + 1
            if waiting == ROWS_AT_ONCE:
                _add_all(table, rows, factors, sums)
                waiting = 0
        for one in range(waiting):
            _add(table, rows[one], factors[one], sums)
        if count == 0:
            into[text] = 0.0
        else:
            for column in range(len(sums)):
                into[text, column] = sums[column] / sums.dtype.type(count)
    return -1
