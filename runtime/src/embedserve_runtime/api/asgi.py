"""ASGI's types, and an answer as a value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from msgspec import Struct, field

from embedserve_runtime.telemetry.requests import RequestFacts

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = b"application/json"


class ClientGone(Exception):
    """The client closed the connection; nobody waits for an answer."""


class Answer(Struct, frozen=True):
    """lines: of further headers, as they are written."""

    body: bytes
    content_type: bytes = JSON
    status: int = 200
    headers: tuple[Header, ...] = ()
    lines: bytes = b""


class Exchange(Struct, frozen=True):
    """A request as handlers see it; header names are lower-case."""

    headers: Mapping[bytes, bytes]
    body: bytes
    request_id: str
    facts: RequestFacts = field(default_factory=RequestFacts)


def lines_of(headers: Iterable[Header]) -> bytes:
    """Headers as they are written: each `name: value` and the end of the line."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def headers_in(lines: bytes) -> list[Header]:
    """The opposite of `lines_of`."""
    pairs = [line.partition(b": ") for line in lines.split(b"\r\n")[:-1]]
    return [(name, value) for name, _, value in pairs]
