"""One request to another server of ours, over a connection of its own that ends with the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import httptools

from embedserve_runtime.api.asgi import Header

CHUNK_BYTES = 262_144
# Of the connection, not of the request; and those that are said anew.
_NOT_PASSED_ON = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


class Unanswered(Exception):
    """There was no connection, or it ended before a whole answer."""


class Place(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Request:
    """target: path and query. Headers of the connection are left out when it is sent."""

    method: str
    target: bytes
    headers: Iterable[Header]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """Header names are lower-case; those of the connection are left out."""

    status: int
    headers: tuple[Header, ...]
    body: bytes


async def ask(place: Place, request: Request) -> Reply:
    """Raises Unanswered; then the other server may have worked on the request or not."""
    try:
        reader, writer = await asyncio.open_connection(place.host, place.port)
    except OSError as error:
        raise Unanswered(f"no connection to {place.host}:{place.port}: {error}") from error
    try:
        writer.write(_head(place, request) + request.body)
        await writer.drain()
        return await _read(reader)
    except (OSError, httptools.HttpParserError) as error:
        raise Unanswered(f"{place.host}:{place.port}: {error}") from error
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _head(place: Place, request: Request) -> bytes:
    passed = [header for header in request.headers if header[0] not in _NOT_PASSED_ON]
    lines = [
        b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), request.target),
        b"host: %b\r\n" % place.host.encode("idna"),
        *(b"%b: %b\r\n" % header for header in passed),
        b"content-length: %d\r\nconnection: close\r\n\r\n" % len(request.body),
    ]
    return b"".join(lines)


async def _read(reader: asyncio.StreamReader) -> Reply:
    reply = _Reading()
    while not reply.is_complete:
        data = await reader.read(CHUNK_BYTES)
        if not data:
            raise OSError("the connection ended before the answer")
        reply.parser.feed_data(data)
    headers = tuple(header for header in reply.headers if header[0] not in _NOT_PASSED_ON)
    return Reply(reply.parser.get_status_code(), headers, b"".join(reply.body))


class _Reading:
    """The parser's callbacks."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[Header] = []
        self.body: list[bytes] = []
        self.is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.is_complete = True
