"""Encodes messages as parts of a ZeroMQ multipart message: msgpack, then the large arrays as they are in memory.

An array is written as its type, its shape, and either its bytes or the number of the part that has them. Both ends run
on one machine, so that numbers have the same byte order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Generic, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from embedserve_runtime.frontends.messages import EngineMessage, FrontEndMessage, Message

M = TypeVar("M", bound=Message)
Buffer: TypeAlias = bytes | memoryview

# Arrays up to this size are copied into the msgpack, which costs less than a part of their own.
INLINE_BYTES = 8_192


class MessageDecodeError(Exception):
    """The received parts are not a message of the expected types."""


class MessageEncoder:
    """Encodes messages into the parts of a multipart message. It is not thread-safe."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._array)
        self._parts: list[Buffer] = []

    def encode(self, message: Message) -> list[Buffer]:
        """Encode a message. Large arrays become views, so they must not be changed before it is sent."""
        parts = self._parts = [b""]
        parts[0] = self._encoder.encode(message)
        self._parts = []
        return parts

    def _array(self, value: object) -> object:
        if not isinstance(value, np.ndarray):
            raise NotImplementedError(f"a message with a {type(value).__name__}")
        content = np.ascontiguousarray(value).data
        if content.nbytes <= INLINE_BYTES:
            return value.dtype.str, value.shape, content
        self._parts.append(content)
        return value.dtype.str, value.shape, len(self._parts) - 1


class MessageDecoder(Generic[M]):
    """Decodes multipart messages of some types. It is not thread-safe.

    types: a message type, or a union of them.
    """

    def __init__(self, types: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(types, dec_hook=self._array)
        self._parts: Sequence[zmq.Frame] = ()

    def decode(self, parts: Sequence[zmq.Frame]) -> M:
        """Decode a message; its arrays are views of the parts. Raises MessageDecodeError."""
        self._parts = parts
        try:
            return self._decoder.decode(parts[0].buffer)
        except (msgspec.DecodeError, RecursionError, IndexError) as error:
            raise MessageDecodeError(str(error)) from error
        finally:
            self._parts = ()

    def _array(self, kind: object, written: object) -> NDArray[Any]:
        """Decode an array of a declared type. Raises ValueError, to which msgspec adds the path to the array."""
        dtype = _dtype_of(kind)
        match written:
            case [dtype.str, list(sizes), bytes(content)]:
                buffer = memoryview(content)
            case [dtype.str, list(sizes), int(index)] if index > 0:
                buffer = self._parts[index].buffer
            case _:
                raise ValueError(f"no array of {dtype}")
        shape = [size for size in sizes if isinstance(size, int) and size >= 0]
        if len(shape) != len(sizes) or math.prod(shape) * dtype.itemsize != buffer.nbytes:
            raise ValueError(f"an array of shape {sizes} in {buffer.nbytes} bytes")
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer)
        return array


@cache
def _dtype_of(array_type: object) -> np.dtype[Any]:
    """Return the dtype of an array type such as NDArray[np.float32]: its innermost argument.

    NumPy wraps it differently from version to version, and from 2.5 on msgspec hands over another form than the one
    that was declared.
    """
    while arguments := get_args(array_type):
        array_type = arguments[-1]
    return np.dtype(array_type)  # type: ignore[call-overload, no-any-return]


def front_end_decoder() -> MessageDecoder[EngineMessage]:
    """Return a decoder of the messages that a front end receives."""
    return MessageDecoder(EngineMessage)


def engine_decoder() -> MessageDecoder[FrontEndMessage]:
    """Return a decoder of the messages that the engine's process receives. Nothing of them is unpickled."""
    return MessageDecoder(FrontEndMessage)
