"""Open-loop load on an HTTP server: requests at a rate, whether or not earlier ones are answered.

    python -m benchmarks.open_loop LOAD

LOAD is a `Load` as JSON; prints its `Report` as JSON. It is a light program of its own, with its own priority, so
that several clients disturb neither each other's clocks nor more of the server than they must.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import cast

HEADER = "X-Tenant"
TEXT = "What is deep learning, and what is it good for?"
MAX_CONNECTIONS = 300
STAGES = (b"x-tokenization-time", b"x-queue-time", b"x-inference-time", b"x-total-time")


@dataclass(frozen=True)
class Load:
    """What one client sends. texts: of each request. cpus: to stay on; empty for all. nice: its priority."""

    port: int
    name: str
    texts: int
    requests_per_second: float
    seconds: float
    nice: int
    cpus: Sequence[int]


@dataclass
class Report:
    """What came of it. seconds: of each request that was answered. stages: milliseconds of each, by `STAGES`.

    refused: how many were not. unsent: how many found no connection free. cpu_seconds: that the client itself took.
    """

    seconds: list[float] = field(default_factory=list)
    stages: list[tuple[int, ...]] = field(default_factory=list)
    refused: int = 0
    unsent: int = 0
    cpu_seconds: float = 0.0


class Connection(asyncio.Protocol):
    """Sends one request at a time."""

    def __init__(self, report: Report, free: asyncio.Queue[Connection]) -> None:
        self._report = report
        self._free = free
        self._head: bytes = b""
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        self._started = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self._missing:
            self._head, _, rest = data.partition(b"\r\n\r\n")
            self._missing = int(self._read_header(b"content-length"))
            data = rest
        self._missing -= len(data)
        if self._missing:
            return
        if self._head.startswith(b"HTTP/1.1 200"):
            self._report.seconds.append(time.perf_counter() - self._started)
            self._report.stages.append(tuple(int(self._read_header(stage)) for stage in STAGES))
        else:
            self._report.refused += 1
        self._free.put_nowait(self)

    def _read_header(self, name: bytes) -> bytes:
        return next(
            line.partition(b":")[2] for line in self._head.split(b"\r\n") if line.lower().startswith(name)
        )


def write_requests(load: Load) -> Iterator[bytes]:
    """Write requests of which no two have a text in common."""
    numbers = itertools.count()
    while True:
        texts = [f"{TEXT} {load.name} {next(numbers)}" for _ in range(load.texts)]
        body = json.dumps({"inputs": texts, "truncate": True}).encode()
        yield (
            b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"%b: %b\r\ncontent-length: %d\r\n\r\n%b" % (HEADER.encode(), load.name.encode(), len(body), body)
        )


async def send_on_time(load: Load) -> Report:
    """Send requests at a rate, whether or not earlier ones are answered, and wait for the last."""
    loop, report = asyncio.get_running_loop(), Report()
    free: asyncio.Queue[Connection] = asyncio.Queue()
    connections: list[asyncio.BaseTransport] = []
    requests, started, begun = write_requests(load), time.perf_counter(), time.process_time()
    for number in range(round(load.requests_per_second * load.seconds)):
        await asyncio.sleep(max(0.0, started + number / load.requests_per_second - time.perf_counter()))
        if free.empty() and len(connections) < MAX_CONNECTIONS:
            pair = await loop.create_connection(lambda: Connection(report, free), "127.0.0.1", load.port)
            connections.append(pair[0])
            free.put_nowait(pair[1])
        if free.empty():
            report.unsent += 1
        else:
            free.get_nowait().send(next(requests))
    for _ in connections:
        await free.get()
    for transport in connections:
        transport.close()
    report.cpu_seconds = time.process_time() - begun
    return report


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    os.nice(load.nice)
    if load.cpus:
        os.sched_setaffinity(0, load.cpus)
    json.dump(asdict(asyncio.run(send_on_time(load))), sys.stdout)


if __name__ == "__main__":
    main()
