"""Reads optional fields of messages, and encodes arrays as fields: protobuf stores floats as they are in memory.

Filling a repeated field number by number takes some 30 times as long. What these functions return is merged into a
message by its `MergeFromString`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from google.protobuf.message import Message

from embedserve_runtime.forward.arrays import FloatArray

_LENGTH_DELIMITED = 2


def optional_field(message: Message, field: str) -> Any:
    """Return the value of an optional field; None if it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def encode_floats(number: int, row: FloatArray) -> bytes:
    """Encode a `repeated float` field with that number."""
    return _encode_field(number, np.ascontiguousarray(row, dtype="<f4").tobytes())


def encode_float_rows(number: int, rows: Iterable[FloatArray]) -> bytes:
    """Encode a field of repeated messages with that number; each message has one row as `repeated float` field 1."""
    return b"".join(_encode_field(number, encode_floats(1, row)) for row in rows)


def _encode_field(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | _LENGTH_DELIMITED) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    """Encode seven bits in each byte, the lowest first; the top bit says that more follow."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
