"""Vectors to JSON and base64, without a Python object for each number.

Large answers are written in slices on another thread: one slice holds the interpreter for a few milliseconds,
where the whole would stop the event loop for as long as it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from embedserve_runtime.engines.base import FloatArray, Int32Array
from embedserve_runtime.engines.results import SparseVector
from embedserve_runtime.heads.quantization import Precision, quantize

# Some 3 ms of writing.
SLICE_VALUES = 131_072
# The same of entries that are written as bytes of their own.
SLICE_ENTRIES = 16_384

RowWriter = Callable[[FloatArray, int], bytes]
Quantized = Callable[[FloatArray], NDArray[Any]]


async def write_rows(vectors: FloatArray, writer: RowWriter) -> bytes:
    """A JSON array of all rows; `writer(rows, first_index)` writes one of some."""
    if vectors.size <= SLICE_VALUES:
        return writer(vectors, 0)
    return await asyncio.to_thread(lambda: b"[" + b",".join(_slices(vectors, writer)) + b"]")


def _slices(vectors: FloatArray, writer: RowWriter) -> Iterator[bytes]:
    rows = max(1, SLICE_VALUES // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), rows):
        yield writer(vectors[start : start + rows], start)[1:-1]


def number_arrays(vectors: FloatArray, _: int) -> bytes:
    """`[[…],[…]]` with the shortest digits that give the same float32."""
    return orjson.dumps(vectors, option=orjson.OPT_SERIALIZE_NUMPY)


def openai_numbers(vectors: FloatArray, first: int) -> bytes:
    return orjson.dumps(
        [
            {"object": "embedding", "index": index, "embedding": row}
            for index, row in enumerate(vectors, first)
        ],
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def openai_base64(vectors: FloatArray, first: int) -> bytes:
    """base64 needs no escaping, so the items are put together as bytes."""
    little_endian = np.ascontiguousarray(vectors, dtype="<f4")
    items = (
        b'{"object":"embedding","index":%d,"embedding":"%b"}' % (index, pybase64.b64encode(row))
        for index, row in enumerate(little_endian, first)
    )
    return b"[" + b",".join(items) + b"]"


def numbers(values: FloatArray) -> list[bytes]:
    """Each number of a vector as JSON."""
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")


async def sparse_items(vectors: Sequence[SparseVector]) -> bytes:
    """TEI's form: for each vector a list of `{"index":…,"value":…}`."""

    def write() -> bytes:
        return b"[" + b",".join(map(_sparse_item, vectors)) + b"]"

    if sum(len(vector.values) for vector in vectors) <= SLICE_ENTRIES:
        return write()
    return await asyncio.to_thread(write)


def _sparse_item(vector: SparseVector) -> bytes:
    if not len(vector.values):
        return b"[]"
    pairs = zip(vector.indices.tolist(), numbers(vector.values), strict=True)
    return b"[" + b",".join([b'{"index":%d,"value":%b}' % pair for pair in pairs]) + b"]"


async def sparse_objects(
    vectors: Sequence[SparseVector],
    write_one: Callable[[SparseVector], bytes],
) -> bytes:
    """Items of all vectors, comma between them."""

    def write() -> bytes:
        return b",".join(map(write_one, vectors))

    if sum(len(vector.values) for vector in vectors) <= SLICE_ENTRIES:
        return write()
    return await asyncio.to_thread(write)


def sparse_object(
    vector: SparseVector,
    precision: Precision,
    tokens: Callable[[Int32Array], list[str]] | None,
    *,
    as_base64: bool = False,
) -> bytes:
    """Our own form: `{"indices":…,"values":…}`, with `tokens` the entries' texts beside them."""
    values = weights_in(vector, precision)
    write = _base64_text if as_base64 else _number_array
    listed = b',"tokens":' + orjson.dumps(tokens(vector.indices)) if tokens else b""
    return b'{"indices":%b,"values":%b%b}' % (write(vector.indices), write(values), listed)


def weights_in(vector: SparseVector, precision: Precision) -> NDArray[Any]:
    """float32, unless float16 is asked for."""
    return vector.values.astype(np.float16) if precision is Precision.FLOAT16 else vector.values


def _base64_text(values: NDArray[Any]) -> bytes:
    return b'"' + pybase64.b64encode(np.ascontiguousarray(values).data) + b'"'


def _number_array(values: NDArray[Any]) -> bytes:
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)


@cache
def rows_in(precision: Precision) -> RowWriter:
    """Writes arrays of numbers of that precision."""
    return numbers_of(lambda rows: quantize(rows, precision))


def numbers_of(quantized: Quantized) -> RowWriter:
    def write(vectors: FloatArray, _: int) -> bytes:
        return orjson.dumps(quantized(vectors), option=orjson.OPT_SERIALIZE_NUMPY)

    return write


@cache
def base64_rows(precision: Precision) -> RowWriter:
    """Writes a text for each row: base64 of its little-endian bytes."""
    return base64_of(lambda rows: quantize(rows, precision))


def base64_of(quantized: Quantized) -> RowWriter:
    def write(vectors: FloatArray, _: int) -> bytes:
        items = (b'"' + pybase64.b64encode(row) + b'"' for row in quantized(vectors))
        return b"[" + b",".join(items) + b"]"

    return write


async def write_matrices(matrices: Sequence[FloatArray], writer: RowWriter | None = None) -> bytes:
    """Items of arrays of rows, comma between them. writer: of rows, None for numbers."""

    def in_slices(matrix: FloatArray) -> bytes:
        return b"[" + b",".join(_slices(matrix, writer or number_arrays)) + b"]"

    return await _written(matrices, in_slices)


async def write_wholes(matrices: Sequence[FloatArray], precision: Precision) -> bytes:
    """base64 of each whole matrix, comma between them."""

    def whole(matrix: FloatArray) -> bytes:
        return b'"' + pybase64.b64encode(quantize(matrix, precision).data) + b'"'

    return await _written(matrices, whole)


async def _written(matrices: Sequence[FloatArray], write_one: Callable[[FloatArray], bytes]) -> bytes:
    def write() -> bytes:
        return b",".join(map(write_one, matrices))

    if sum(matrix.size for matrix in matrices) <= SLICE_VALUES:
        return write()
    return await asyncio.to_thread(write)
