"""Encodes vectors as JSON and base64, without a Python object for each number.

Large answers are written in slices on another thread: one slice holds the interpreter for a few milliseconds, where
the whole answer would stop the event loop for as long as it takes.
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

from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.outputs import SparseVector
from embedserve_runtime.heads.quantization import OutputDtype, quantize

# Numbers of one slice: some 3 ms of writing.
MAX_SLICE_VALUES = 131_072
# Entries of one slice that are written one by one.
MAX_SLICE_ENTRIES = 16_384

RowWriter = Callable[[FloatArray, int], bytes]
Quantizer = Callable[[FloatArray], NDArray[Any]]


async def write_rows(vectors: FloatArray, writer: RowWriter) -> bytes:
    """Write a JSON array of all rows; `writer(rows, first_index)` writes an array of some rows."""
    if vectors.size <= MAX_SLICE_VALUES:
        return writer(vectors, 0)
    return await asyncio.to_thread(lambda: b"[" + b",".join(_write_slices(vectors, writer)) + b"]")


def _write_slices(vectors: FloatArray, writer: RowWriter) -> Iterator[bytes]:
    rows = max(1, MAX_SLICE_VALUES // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), rows):
        yield writer(vectors[start : start + rows], start)[1:-1]


def write_number_arrays(vectors: FloatArray, _: int) -> bytes:
    """Write `[[…],[…]]` with the shortest digits that give the same float32."""
    return orjson.dumps(vectors, option=orjson.OPT_SERIALIZE_NUMPY)


def write_openai_numbers(vectors: NDArray[Any], first: int) -> bytes:
    return orjson.dumps(
        [
            {"object": "embedding", "index": index, "embedding": row}
            for index, row in enumerate(vectors, first)
        ],
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


@cache
def get_openai_writer(output_dtype: OutputDtype, *, as_base64: bool) -> RowWriter:
    """Return a writer of rows as OpenAI's items, in that dtype."""
    write = write_openai_base64 if as_base64 else write_openai_numbers
    return lambda vectors, first: write(quantize(vectors, output_dtype), first)


def write_openai_base64(vectors: NDArray[Any], first: int) -> bytes:
    """Write the items with base64 vectors as bytes: base64 needs no escaping."""
    items = (
        b'{"object":"embedding","index":%d,"embedding":"%b"}' % (index, pybase64.b64encode(row))
        for index, row in enumerate(vectors, first)
    )
    return b"[" + b",".join(items) + b"]"


def format_numbers(values: NDArray[np.floating]) -> list[bytes]:
    """Format each number of a vector as JSON."""
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")


async def write_sparse_items(vectors: Sequence[SparseVector]) -> bytes:
    """Write sparse vectors in TEI's format: for each a list of `{"index":…,"value":…}`."""

    def write() -> bytes:
        return b"[" + b",".join(map(_write_sparse_item, vectors)) + b"]"

    if sum(len(vector.values) for vector in vectors) <= MAX_SLICE_ENTRIES:
        return write()
    return await asyncio.to_thread(write)


def _write_sparse_item(vector: SparseVector) -> bytes:
    if not len(vector.values):
        return b"[]"
    pairs = zip(vector.indices.tolist(), format_numbers(vector.values), strict=True)
    return b"[" + b",".join([b'{"index":%d,"value":%b}' % pair for pair in pairs]) + b"]"


async def write_sparse_vectors(
    vectors: Sequence[SparseVector],
    write_one: Callable[[SparseVector], bytes],
) -> bytes:
    """Write the items of all vectors, separated by commas."""

    def write() -> bytes:
        return b",".join(map(write_one, vectors))

    if sum(len(vector.values) for vector in vectors) <= MAX_SLICE_ENTRIES:
        return write()
    return await asyncio.to_thread(write)


def write_sparse_vector(
    vector: SparseVector,
    output_dtype: OutputDtype,
    tokens: Callable[[Int32Array], list[str]] | None,
    *,
    as_base64: bool = False,
) -> bytes:
    """Write `{"indices":…,"values":…}`; with `tokens`, the texts of the entries too."""
    values = convert_weights(vector, output_dtype)
    write = _write_base64 if as_base64 else _write_numbers
    listed = b',"tokens":' + orjson.dumps(tokens(vector.indices)) if tokens else b""
    return b'{"indices":%b,"values":%b%b}' % (write(vector.indices), write(values), listed)


def convert_weights(vector: SparseVector, output_dtype: OutputDtype) -> NDArray[Any]:
    """Return the weights as float16 if that is the dtype, else as float32."""
    return vector.values.astype(np.float16) if output_dtype is OutputDtype.FLOAT16 else vector.values


def _write_base64(values: NDArray[Any]) -> bytes:
    return b'"' + pybase64.b64encode(np.ascontiguousarray(values).data) + b'"'


def _write_numbers(values: NDArray[Any]) -> bytes:
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)


@cache
def get_number_writer(output_dtype: OutputDtype) -> RowWriter:
    """Return a writer of rows as arrays of numbers in that dtype."""
    return make_number_writer(lambda rows: quantize(rows, output_dtype))


def make_number_writer(quantizer: Quantizer) -> RowWriter:
    def write(vectors: FloatArray, _: int) -> bytes:
        return orjson.dumps(quantizer(vectors), option=orjson.OPT_SERIALIZE_NUMPY)

    return write


@cache
def get_base64_writer(output_dtype: OutputDtype) -> RowWriter:
    """Return a writer of rows as base64 of their little-endian bytes."""
    return make_base64_writer(lambda rows: quantize(rows, output_dtype))


def make_base64_writer(quantizer: Quantizer) -> RowWriter:
    def write(vectors: FloatArray, _: int) -> bytes:
        items = (b'"' + pybase64.b64encode(row) + b'"' for row in quantizer(vectors))
        return b"[" + b",".join(items) + b"]"

    return write


async def write_matrices(matrices: Sequence[FloatArray], writer: RowWriter | None = None) -> bytes:
    """Write the items of arrays of rows, separated by commas. writer: writes rows; None for numbers."""

    def in_slices(matrix: FloatArray) -> bytes:
        return b"[" + b",".join(_write_slices(matrix, writer or write_number_arrays)) + b"]"

    return await _write_all(matrices, in_slices)


async def write_base64_matrices(matrices: Sequence[FloatArray], output_dtype: OutputDtype) -> bytes:
    """Write base64 of each whole matrix, separated by commas."""

    def whole(matrix: FloatArray) -> bytes:
        return b'"' + pybase64.b64encode(quantize(matrix, output_dtype).data) + b'"'

    return await _write_all(matrices, whole)


async def _write_all(matrices: Sequence[FloatArray], write_one: Callable[[FloatArray], bytes]) -> bytes:
    def write() -> bytes:
        return b",".join(map(write_one, matrices))

    if sum(matrix.size for matrix in matrices) <= MAX_SLICE_VALUES:
        return write()
    return await asyncio.to_thread(write)
