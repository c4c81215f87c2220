"""Vectors to JSON, without a Python object for each number.

Large answers are written in slices on another thread: one slice holds the interpreter for a few milliseconds,
where the whole would stop the event loop for as long as it takes.
"""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Callable, Iterator

import numpy as np
import orjson

from embedserve_runtime.engines.base import FloatArray

# Some 3 ms of writing.
SLICE_VALUES = 131_072

Writer = Callable[[FloatArray, int], bytes]


async def write_rows(vectors: FloatArray, writer: Writer) -> bytes:
    """Items of all rows, comma between them; `writer(rows, first_index)` writes a JSON array of some."""
    if vectors.size <= SLICE_VALUES:
        return writer(vectors, 0)[1:-1]
    return await asyncio.to_thread(lambda: b",".join(_slices(vectors, writer)))


def _slices(vectors: FloatArray, writer: Writer) -> Iterator[bytes]:
    rows = max(1, SLICE_VALUES // vectors.shape[1])
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
        b'{"object":"embedding","index":%d,"embedding":"%b"}'
        % (index, binascii.b2a_base64(row, newline=False))
        for index, row in enumerate(little_endian, first)
    )
    return b"[" + b",".join(items) + b"]"
