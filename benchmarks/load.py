"""Closed-loop load on an HTTP server: connections that send a request again as soon as it is answered."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import cast


class Client(asyncio.Protocol):
    """One connection that sends the next request when the answer to the last is complete."""

    def __init__(self, requests: Iterator[bytes], latencies: list[float]) -> None:
        self._requests = requests
        self._latencies = latencies
        self._left = 0
        self.running = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._started = time.perf_counter()
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        if not self._left:
            head, _, rest = data.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            self._left = int(length.split(b":")[1])
            data = rest
        self._left -= len(data)
        if not self._left:
            self._latencies.append(time.perf_counter() - self._started)
            if self.running:
                self._send()


async def load(
    port: int, path: bytes, body: bytes | Sequence[bytes], connections: int, seconds: float
) -> list[float]:
    """Seconds of each answer. Several bodies are sent in turn, whichever connection is free."""
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    bodies = [body] if isinstance(body, bytes) else body
    requests = itertools.cycle([head % (path, len(one), one) for one in bodies])
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    clients = []
    for _ in range(connections):
        transport, client = await loop.create_connection(
            lambda: Client(requests, latencies), "127.0.0.1", port
        )
        clients.append((transport, client))
    await asyncio.sleep(seconds)
    for transport, client in clients:
        client.running = False
        transport.close()
    return latencies
