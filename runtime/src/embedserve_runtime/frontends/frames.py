"""What passes between a front end and the engine's process, as bytes.

A frame is a header (length of what follows, kind, number of the request) and a payload. Numbers are little-endian as in
memory: both ends run on one machine. Arrays lie at multiples of four bytes and are not copied when they are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from embedserve_runtime import errors
from embedserve_runtime.engines.base import (
    FlatTokens,
    FloatArray,
    Int32Array,
    Tokens,
    TokenSequence,
    lengths_of,
)
from embedserve_runtime.errors import EmbedserveError, EngineFailure, Overloaded, RequestError
from embedserve_runtime.results import Output, Results, SparseVector
from embedserve_runtime.scheduling.policy import Backlog
from embedserve_runtime.scheduling.work import Completed, Order

N = TypeVar("N", bound=np.generic)

HEADER = struct.Struct("<IB3xQ")
# Larger ones are taken as a broken stream: four times what the largest request or result of usual settings takes.
MOST_BYTES = 2**30


class Kind(IntEnum):
    # from a front end
    SUBMIT = 1  # an order
    CANCEL = 2
    ASK_PAGE = 3  # of metrics
    OPENED = 4  # it has its tokenizer and can serve
    # from the engine's process
    SETUP = 11  # settings, pickled
    PHASE = 12  # of the server's life, pickled
    OPEN = 13  # the model's card and limits, pickled
    QUEUE = 14  # what waits
    DONE = 15  # results
    FAILED = 16
    PAGE = 17
    STOP = 18  # accept no more, finish, end


class Frame(Struct, frozen=True):
    kind: Kind
    number: int
    payload: bytes


class BrokenStream(Exception):
    """What came in is no frame: the other end is not what it should be."""


def frame(kind: Kind, number: int = 0, *parts: bytes) -> bytes:
    return b"".join((HEADER.pack(sum(map(len, parts)), kind, number), *parts))


class FrameReader:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Frames that are whole now. Raises BrokenStream."""
        pending = self._pending
        pending += data
        start = 0
        while len(pending) - start >= HEADER.size:
            length, kind, number = HEADER.unpack_from(pending, start)
            if length > MOST_BYTES or kind not in _KINDS:
                raise BrokenStream(f"a frame of kind {kind} with {length} bytes")
            end = start + HEADER.size + length
            if len(pending) < end:
                break
            yield Frame(_KINDS[kind], number, bytes(memoryview(pending)[start + HEADER.size : end]))
            start = end
        del pending[:start]


_KINDS = {int(kind): kind for kind in Kind}

# -- orders

_ORDER = struct.Struct("<dqIHBB")
_NO_BOUND = -1
_ALL = -1


def pack_order(order: Order, deadline: float) -> tuple[bytes, ...]:
    """deadline: of the monotonic clock, which all processes of a machine share."""
    sequences = order.sequences
    is_flat = isinstance(sequences, FlatTokens)
    written = [] if is_flat else [one for one in sequences if isinstance(one, TokenSequence)]
    typed = any(one.types is not None for one in written)
    most = _NO_BOUND if order.most_bytes is None else order.most_bytes
    parts = [
        _ORDER.pack(deadline, most, len(sequences), order.wanted.value, typed, bool(written)),
        np.array(lengths_of(sequences), dtype=np.int32).tobytes(),
    ]
    if isinstance(sequences, FlatTokens):
        return *parts, sequences.token_ids.tobytes()
    parts += [(one.ids if isinstance(one, TokenSequence) else one).tobytes() for one in sequences]
    if written:
        marks = [_marks(one) for one in sequences]
        parts.append(np.array(marks, dtype=np.int32).tobytes())
    if typed:
        parts += [_types(one).tobytes() for one in sequences]
    return tuple(parts)


def unpack_order(payload: bytes) -> tuple[Order, float]:
    """Sequences whose ids are not all there is to them say the same in a batch as those that were packed."""
    deadline, most, count, wanted, typed, written = _ORDER.unpack_from(payload)
    cursor = _Cursor(payload, _ORDER.size)
    lengths = cursor.integers(count)
    total = int(lengths.sum())
    # A copy, lest the engine gets ids that cannot be written; torch warns of those.
    ids = FlatTokens.of(cursor.integers(total).copy(), lengths)
    sequences: Sequence[Tokens] = ids
    if written:
        marks = cursor.integers(3 * count).reshape(count, 3).tolist()
        types = [*_split(cursor.integers(total), lengths)] if typed else [None] * count
        sequences = [
            TokenSequence(one, of, unpooled, bool(query), None if attended == _ALL else attended)
            for one, of, (unpooled, query, attended) in zip(ids, types, marks, strict=True)
        ]
    return Order(sequences, Output(wanted), None if most == _NO_BOUND else most), deadline


def _split(array: NDArray[N], lengths: Int32Array) -> Iterator[NDArray[N]]:
    """Views of its beginning, end to end."""
    start = 0
    for length in lengths.tolist():
        yield array[start : start + length]
        start += length


def _types(one: Tokens) -> Int32Array:
    types = one.types if isinstance(one, TokenSequence) else None
    return np.zeros(len(one), dtype=np.int32) if types is None else types


def _marks(one: Tokens) -> tuple[int, bool, int]:
    if not isinstance(one, TokenSequence):
        return 0, False, _ALL
    return one.unpooled, one.query, _ALL if one.attended is None else one.attended


# -- results

_COMPLETED = struct.Struct("<ddI")


def pack_completed(done: Completed) -> tuple[bytes, ...]:
    """The members that there are, in the order of the flags."""
    results = done.results
    present = Output(0)
    parts: list[bytes] = []
    for flag, rows in ((Output.DENSE, results.dense), (Output.LOGITS, results.logits)):
        if rows is not None:
            present |= flag
            parts += (struct.pack("<II", *rows.shape), rows.tobytes())
    if results.sparse is not None:
        present |= Output.SPARSE
        parts += _pack_sparse(results.sparse)
    for flag, arrays in ((Output.MULTI_VECTOR, results.multi_vectors), (Output.HIDDEN, results.hidden)):
        if arrays is not None:
            present |= flag
            parts += _pack_arrays(arrays)
    return _COMPLETED.pack(done.queue_seconds, done.engine_seconds, present.value), *parts


def unpack_completed(payload: bytes) -> Completed:
    """The arrays are read-only views of the payload."""
    queue, engine, flags = _COMPLETED.unpack_from(payload)
    present = Output(flags)
    cursor = _Cursor(payload, _COMPLETED.size)
    results = Results(
        dense=cursor.rows() if Output.DENSE in present else None,
        logits=cursor.rows() if Output.LOGITS in present else None,
        sparse=cursor.sparse() if Output.SPARSE in present else None,
        multi_vectors=cursor.arrays() if Output.MULTI_VECTOR in present else None,
        hidden=cursor.arrays() if Output.HIDDEN in present else None,
    )
    return Completed(results, queue, engine)


def _pack_sparse(vectors: Sequence[SparseVector]) -> list[bytes]:
    lengths = np.array([len(one.indices) for one in vectors], dtype=np.int32)
    return [
        struct.pack("<I", len(vectors)),
        lengths.tobytes(),
        *(one.indices.tobytes() for one in vectors),
        *(one.values.tobytes() for one in vectors),
    ]


def _pack_arrays(arrays: Sequence[FloatArray]) -> list[bytes]:
    lengths = np.array([len(one) for one in arrays], dtype=np.int32)
    return [
        struct.pack("<II", len(arrays), arrays[0].shape[1]),
        lengths.tobytes(),
        *(one.tobytes() for one in arrays),
    ]


class _Cursor:
    """Reads a payload from front to back."""

    def __init__(self, payload: bytes, at: int) -> None:
        self._payload = payload
        self._at = at

    def rows(self) -> FloatArray:
        count, size = self.integers(2).tolist()
        return self.floats(count * size).reshape(count, size)

    def sparse(self) -> list[SparseVector]:
        (count,) = self.integers(1)
        lengths = self.integers(int(count))
        total = int(lengths.sum())
        indices = _split(self.integers(total), lengths)
        values = _split(self.floats(total), lengths)
        return [SparseVector(*pair) for pair in zip(indices, values, strict=True)]

    def arrays(self) -> list[FloatArray]:
        count, size = self.integers(2).tolist()
        lengths = self.integers(count)
        return [*_split(self.floats(int(lengths.sum()) * size).reshape(-1, size), lengths)]

    def integers(self, count: int) -> Int32Array:
        array = np.frombuffer(self._payload, dtype=np.int32, count=count, offset=self._at)
        self._at += array.nbytes
        return array

    def floats(self, count: int) -> FloatArray:
        array = np.frombuffer(self._payload, dtype=np.float32, count=count, offset=self._at)
        self._at += array.nbytes
        return array


# -- failures and the queue

_FAILED = struct.Struct("<dH")
_BACKLOG = struct.Struct("<IId")


def pack_error(error: EmbedserveError) -> tuple[bytes, ...]:
    retry_after = error.retry_after if isinstance(error, Overloaded) else 0.0
    reason = error.reason.encode()
    return _FAILED.pack(retry_after, len(reason)), reason, error.message.encode("utf-8", "replace")


def unpack_error(payload: bytes) -> EmbedserveError:
    retry_after, length = _FAILED.unpack_from(payload)
    reason = payload[_FAILED.size : _FAILED.size + length].decode()
    message = payload[_FAILED.size + length :].decode()
    kind = _REQUEST_ERRORS.get(reason, EngineFailure)
    return Overloaded(message, retry_after) if kind is Overloaded else kind(message)


def _request_errors() -> dict[str, type[EmbedserveError]]:
    """By reason. All are made of a message alone but Overloaded."""
    found: dict[str, type[EmbedserveError]] = {}
    waiting: list[type[EmbedserveError]] = [RequestError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__ == errors.__name__:
            found[kind.reason] = kind
        waiting += kind.__subclasses__()
    return found


_REQUEST_ERRORS = _request_errors()


def pack_backlog(backlog: Backlog) -> bytes:
    return _BACKLOG.pack(backlog.inputs, backlog.tokens, backlog.tokens_per_second or 0.0)


def unpack_backlog(payload: bytes) -> Backlog:
    inputs, tokens, rate = _BACKLOG.unpack(payload)
    return Backlog(inputs, tokens, rate or None)
