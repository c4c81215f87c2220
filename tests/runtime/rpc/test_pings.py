"""Keep-alive pings of clients, as frames of HTTP/2 on a socket: the library's client cannot be asked when it pings."""

from __future__ import annotations

import asyncio
import struct
from contextlib import closing
from typing import NamedTuple

import pytest

from embedserve_runtime.rpc import server as rpc_server
from tests.runtime.rpc.rpc_kit import served

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
# The library ends a connection at the third ping that comes too early.
PINGS = 12


class Frame(NamedTuple):
    kind: int
    flags: int
    content: bytes


def written(kind: int, content: bytes = b"", flags: int = 0) -> bytes:
    """A frame of the connection itself, as HTTP/2 lays it out: 3 bytes of length, kind, flags, stream 0, content."""
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, 0) + content


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    head = await reader.readexactly(9)
    return Frame(head[3], head[4], await reader.readexactly(int.from_bytes(head[:3], "big")))


async def ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    """Ping, and wait for the answer, which has the same content. The server must not end the connection instead."""
    content = number.to_bytes(8, "big")
    writer.write(written(PING, content))
    while True:
        frame = await read_frame(reader)
        assert frame.kind != GOAWAY, frame.content
        if frame == Frame(PING, ACK, content):
            return


async def test_clients_without_calls_may_ping_as_often_as_is_permitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So that the test need not wait between pings. Without the permission the library asks for two hours.
    monkeypatch.setattr(rpc_server, "MIN_PING_INTERVAL_MS", 0)
    async with served() as server:
        host, _, port = server.server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with closing(writer):
            writer.write(PREFACE + written(SETTINGS))
            for number in range(PINGS):
                await ping(reader, writer, number)


def test_pings_every_ten_seconds_are_permitted_though_the_network_brings_them_closer_together() -> None:
    assert rpc_server.MIN_PING_INTERVAL_MS <= 5_000
