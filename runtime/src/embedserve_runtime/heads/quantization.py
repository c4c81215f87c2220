"""Quantizes vectors into fewer bytes, by pure functions on rows.

binary and ubinary are those of sentence-transformers' `quantize_embeddings`. Its int8 needs ranges measured on a
sample of texts, which one request does not have: a component of a unit vector of 1,024 dimensions is about 0.03, so
that fixed ranges of [-1, 1] would leave some four steps for most of them. Here each row has its own range instead.
In 384 dimensions that keeps cosines to 0.0005 in the mean and 0.003 at worst, and needs no sample; compare such
rows by cosine, not by dot product. With ranges, from the request or the model's folder, int8 and uint8 are those of
sentence-transformers too.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.ranges import Ranges

INT8_MAX = np.float32(127.0)


class OutputDtype(StrEnum):
    """The number type in which vectors are returned."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"
    UINT8 = "uint8"
    BINARY = "binary"
    UBINARY = "ubinary"


def quantize(rows: FloatArray, precision: OutputDtype, ranges: Ranges | None = None) -> NDArray[Any]:
    """Quantize rows into a contiguous, little-endian array.

    ranges: those of each column, for int8 and uint8; None gives each row its own scale.


    Raises InvalidInput for a value that float16 cannot hold.
    """
    match precision:
        case OutputDtype.FLOAT32:
            return np.ascontiguousarray(rows, dtype="<f4")
        case OutputDtype.FLOAT16:
            return _to_float16(rows)
        case OutputDtype.INT8 if ranges is None:
            return _quantize_int8(rows)
        case OutputDtype.INT8 | OutputDtype.UINT8:
            codes = (
                _quantize_int8(rows).astype(np.int16) + 128
                if ranges is None
                else _quantize_in_ranges(rows, ranges)
            )
            return (codes - 128).astype(np.int8) if precision is OutputDtype.INT8 else codes.astype(np.uint8)
        case OutputDtype.UBINARY:
            return np.packbits(rows > 0, axis=1)
        case OutputDtype.BINARY:
            return (np.packbits(rows > 0, axis=1).astype(np.int16) - 128).astype(np.int8)


def compute_row_scales(rows: FloatArray) -> FloatArray:
    """Return the factor of each row that turns its int8 numbers (or uint8 numbers less 128) back into the vector."""
    steps: FloatArray = np.abs(rows).max(axis=1, initial=np.float32(0.0)) / INT8_MAX
    return steps


def _quantize_in_ranges(rows: FloatArray, ranges: Ranges) -> NDArray[np.int16]:
    """Return which of 255 steps between the minimum and the maximum of its column each number lies in. Numbers outside
    are clipped."""
    minimum = np.array(ranges.minimum, dtype=np.float32)
    steps = (np.array(ranges.maximum, dtype=np.float32) - minimum) / 255
    steps = np.where(steps == 0, np.float32(1), steps)
    return np.clip(np.floor((rows - minimum) / steps), 0, 255).astype(np.int16)


def _quantize_int8(rows: FloatArray) -> NDArray[np.int8]:
    steps = compute_row_scales(rows)
    # A row of zeros stays a row of zeros.
    steps[steps == 0.0] = 1.0
    codes: NDArray[np.int8] = np.rint(rows / steps[:, None]).clip(-INT8_MAX, INT8_MAX).astype(np.int8)
    return codes


def _to_float16(rows: FloatArray) -> NDArray[np.float16]:
    if np.abs(rows).max(initial=0.0) > np.finfo(np.float16).max:
        raise InvalidInput("a value is too large for float16; normalize, or take float32")
    return np.ascontiguousarray(rows, dtype="<f2")
