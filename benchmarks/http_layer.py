"""What the HTTP layer costs, without a model: real server, real routes, real scheduler, a runner that returns rows.

    python -m benchmarks.http_layer [--seconds 5] [--connections 64]

Prints requests/s per core of the server's process (requests over its own CPU seconds, so that the load generator on
the same machine does not count), and the time that an answer of 32 vectors of 1024 takes to build.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import cast

import numpy as np
import uvicorn
import uvloop

from embedserve_runtime.api.app import EMBEDDING_ROUTES, ROUTES, serving_app
from embedserve_runtime.api.body import Intake
from embedserve_runtime.api.encoding import number_arrays, openai_base64, openai_numbers
from embedserve_runtime.api.endpoint import Surroundings
from embedserve_runtime.api.errors import CAUSES, STATUSES
from embedserve_runtime.config import BatchingSettings
from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.serve import SWITCH_SECONDS
from embedserve_runtime.service import EmbeddingService
from embedserve_runtime.telemetry.metrics import Metrics
from tests.runtime.serve_kit import TinyRunner, card_of, tiny_tokenizer

BODY = b'{"inputs":"What is deep learning, and what is it good for?"}'
DIMENSIONS = 384


def serve(sock: socket.socket, control: Connection) -> None:
    """The server's process: serves until told to stop, then reports its CPU seconds."""
    sys.setswitchinterval(SWITCH_SECONDS)
    uvloop.run(_serve(sock, control))


async def _serve(sock: socket.socket, control: Connection) -> None:
    rows = np.random.default_rng(0).standard_normal((4096, DIMENSIONS), dtype=np.float32)

    def run(batch: PackedBatch) -> FloatArray:
        return rows[: len(batch.cu_seqlens) - 1]

    metrics = Metrics(ROUTES, STATUSES, EMBEDDING_ROUTES, CAUSES)
    dispatcher = Dispatcher(
        TinyRunner(run), Limits(16_384, 1_000_000, 20_000), clock=time.perf_counter, observer=metrics
    )
    tokenizer = tiny_tokenizer()
    card = card_of(dimensions=DIMENSIONS)
    readiness = Readiness()
    readiness.open(EmbeddingService(card, tokenizer, dispatcher, BatchingSettings(), time.perf_counter))
    around = Surroundings(readiness, metrics, Intake(2**24, 2**28))
    app = serving_app(around, "null", with_probes=True)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, control.recv) == "cpu":
        control.send(time.process_time())
    server.should_exit = True
    await serving
    dispatcher.close("done")


class Client(asyncio.Protocol):
    """One connection that sends the next request when the answer to the last is complete."""

    def __init__(self, request: bytes, latencies: list[float]) -> None:
        self._request = request
        self._latencies = latencies
        self._left = 0
        self.running = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._started = time.perf_counter()
        self._transport.write(self._request)

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


async def load(port: int, path: bytes, body: bytes, connections: int, seconds: float) -> list[float]:
    request = (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (path, len(body), body)
    )
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    clients = []
    for _ in range(connections):
        transport, client = await loop.create_connection(
            lambda: Client(request, latencies), "127.0.0.1", port
        )
        clients.append((transport, client))
    await asyncio.sleep(seconds)
    for transport, client in clients:
        client.running = False
        transport.close()
    return latencies


def measure_requests(seconds: float, connections: int) -> None:
    sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(sock, theirs), daemon=True)
    process.start()
    port = sock.getsockname()[1]
    cases = (
        ("/embed, one text", b"/embed", BODY),
        (
            "/v1/embeddings, one text, base64",
            b"/v1/embeddings",
            b'{"input":"What is it?","encoding_format":"base64"}',
        ),
    )
    for name, path, body in cases:
        uvloop.run(load(port, path, body, connections, min(1.0, seconds)))
        ours.send("cpu")
        before = ours.recv()
        started = time.perf_counter()
        latencies = uvloop.run(load(port, path, body, connections, seconds))
        took = time.perf_counter() - started
        ours.send("cpu")
        cpu = ours.recv() - before
        marks = statistics.quantiles(latencies, n=100)
        print(
            f"{name}: {len(latencies) / cpu:,.0f} requests/s per core ({len(latencies) / took:,.0f}/s here), "
            f"p50 {marks[49] * 1e3:.2f} ms, p99 {marks[98] * 1e3:.2f} ms"
        )
    ours.send("stop")
    process.join()


def measure_answers() -> None:
    vectors = np.random.default_rng(0).standard_normal((32, 1024), dtype=np.float32)
    for name, writer in (
        ("/embed JSON", number_arrays),
        ("/v1/embeddings JSON", openai_numbers),
        ("/v1/embeddings base64", openai_base64),
    ):
        times = []
        for _ in range(300):
            started = time.perf_counter()
            writer(vectors, 0)
            times.append(time.perf_counter() - started)
        print(
            f"32 x 1024 as {name}: best {min(times) * 1e3:.3f} ms, median {statistics.median(times) * 1e3:.3f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of load for each route")
    parser.add_argument("--connections", type=int, default=64)
    options = parser.parse_args()
    measure_answers()
    measure_requests(options.seconds, options.connections)


if __name__ == "__main__":
    main()
