"""Writes the vectors of texts in chunks (`overflow: chunk` and `chunk-mean`) as the answers of `/v1/embeddings`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np

from embedserve_runtime.api.encoding import MAX_SLICE_VALUES, RowWriter
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.service import ChunkedResult


async def write_openai_chunks(result: ChunkedResult, writer: RowWriter) -> bytes:
    """Write an item for each mean, or for each chunk where there are no means. writer: writes rows as arrays."""

    def write() -> bytes:
        items = _list_chunks(result) if result.means is None else _list_means(result, result.means)
        return b"[%b]" % b",".join(
            b'{"object":"embedding","index":%d,"embedding":%b,%b}' % (index, writer(row[None], 0)[1:-1], rest)
            for index, row, rest in items
        )

    if sum(vectors.size for vectors in result.vectors) <= MAX_SLICE_VALUES:
        return write()
    return await asyncio.to_thread(write)


def _list_means(result: ChunkedResult, means: FloatArray) -> Iterator[tuple[int, FloatArray, bytes]]:
    """Yield for each text its number, its mean, and the members that follow them."""
    for index, (mean, tokens) in enumerate(zip(np.asarray(means), result.tokens, strict=True)):
        yield index, mean, b'"chunks":%d' % len(tokens)


def _list_chunks(result: ChunkedResult) -> Iterator[tuple[int, FloatArray, bytes]]:
    """Yield for each chunk the number of its text, its vector, and the members that follow them."""
    for index, (vectors, spans) in enumerate(zip(result.vectors, result.spans, strict=True)):
        for chunk, (vector, (start, stop)) in enumerate(zip(vectors, spans, strict=True)):
            yield index, vector, b'"chunk":%d,"start":%d,"end":%d' % (chunk, start, stop)
