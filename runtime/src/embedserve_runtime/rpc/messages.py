"""Reads and parses messages.

Methods are registered without a deserializer, so that a message that cannot be parsed is refused by this code, with a
clear message, and is counted. The library would answer with an exception's text and write a traceback into the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from embedserve_runtime.api.errors import BodyTooLarge, MalformedBody
from embedserve_runtime.errors import RequestError

Q = TypeVar("Q", bound=Message)

# An oversized message is received up to twice the bound, and up to the library's default, so that this code can refuse
# it with a clear message and count it. The library cuts off a larger one without telling the server why the call ended.
LIBRARY_DEFAULT_BYTES = 4 * 2**20


class MalformedMessage(MalformedBody):
    """The message is not what the method takes, or is not a protobuf message at all."""

    reason = "MalformedMessage"


class MessageTooLarge(BodyTooLarge):
    """The message is larger than the body of an HTTP request may be."""

    reason = "MessageTooLarge"


class MissingMessage(RequestError):
    """The call ended before its message had arrived."""

    reason = "MissingMessage"


def max_receive_bytes(max_message_bytes: int) -> int:
    """Return the size up to which the library receives messages whose bound is `max_message_bytes`."""
    return max_message_bytes + max(max_message_bytes, LIBRARY_DEFAULT_BYTES)


async def read_single_message(messages: AsyncIterator[bytes]) -> bytes:
    """Read the message of a call that has one. Raises MissingMessage."""
    async for message in messages:
        return message
    raise MissingMessage("the call ended before its message had arrived")


def check_size(message: bytes, max_bytes: int) -> None:
    """Raise MessageTooLarge for a message of more than `max_bytes`."""
    if len(message) > max_bytes:
        raise MessageTooLarge(
            f"the message has {len(message)} bytes and may have {max_bytes}; send fewer inputs at a time"
        )


def parse(kind: type[Q], message: bytes) -> Q:
    """Parse a message. Raises MalformedMessage."""
    try:
        return kind.FromString(message)
    except DecodeError as error:
        # The library's text is "Error parsing message with type 'x': why".
        why = str(error).rpartition(": ")[2]
        raise MalformedMessage(f"the message is no {kind.DESCRIPTOR.full_name}: {why}") from error
