"""What the HTTP layer costs, without a model: real server, real routes, real scheduler, a runner that returns rows.

    python -m benchmarks.http_layer [--seconds 5] [--connections 64]

Prints requests/s per core of the server's process (requests over its own CPU seconds, so that the load generator on
the same machine does not count), what the parts of a request take, and the time that an answer of 32 vectors of 1024
takes to build.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import uvloop

from benchmarks.command_line import parser_of
from benchmarks.load import load
from benchmarks.null_server import DIMENSIONS, NullApplication, null_server
from embedserve_runtime.api.encoding import write_number_arrays, write_openai_base64, write_openai_numbers
from embedserve_runtime.api.schemas.parsing import read_json
from embedserve_runtime.api.schemas.tei import EmbedRequest
from embedserve_runtime.frontends.context import build_request_series
from embedserve_runtime.frontends.interpreter import tune_interpreter
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.telemetry.metrics import Metrics
from embedserve_runtime.telemetry.requests import RequestFacts
from embedserve_runtime.tokenizing import TruncationRules
from tests.support.tiny_models import build_tiny_tokenizer

TEXT = "What is deep learning, and what is it good for?"
BODY = b'{"inputs":"%b"}' % TEXT.encode()
# The server runs equal texts that are in flight once.
BODIES = 1_024
SCOPE = {"type": "http", "method": "POST", "path": "/embed", "query_string": b""}


def measure_requests(seconds: float, connections: int) -> None:
    cases = (
        ("/embed, one text", b"/embed", b'{"inputs":"What is deep learning, and what is %d good for?"}'),
        (
            "/v1/embeddings, one text, base64",
            b"/v1/embeddings",
            b'{"input":"What is %d?","encoding_format":"base64"}',
        ),
    )
    with null_server() as server:
        for name, path, template in cases:
            body = [template % number for number in range(BODIES)]
            uvloop.run(load(server.port, path, body, connections, min(1.0, seconds)))
            before, started = server.cpu_seconds(), time.perf_counter()
            latencies = uvloop.run(load(server.port, path, body, connections, seconds))
            took = time.perf_counter() - started
            cpu = server.cpu_seconds() - before
            percentiles = statistics.quantiles(latencies, n=100)
            print(
                f"{name}: {len(latencies) / cpu:,.0f} requests/s per core ({len(latencies) / took:,.0f}/s here), "
                f"p50 {percentiles[49] * 1e3:.2f} ms, p99 {percentiles[98] * 1e3:.2f} ms"
            )


def measure_parts() -> None:
    """The parts of one `/embed` of one text, each alone, best of several; the application without sockets in turn."""
    tune_interpreter()
    whole = uvloop.run(_application_seconds(20_000)) * 1e6
    tokenizer = build_tiny_tokenizer()
    row = np.random.default_rng(0).standard_normal((1, DIMENSIONS), dtype=np.float32)
    metrics = Metrics(build_request_series()).requests
    facts = RequestFacts(
        inputs=1, lengths=[14], tokenize_seconds=0.001, queue_seconds=0.001, engine_seconds=0.001
    )
    parts: dict[str, Callable[[], object]] = {
        "JSON in": lambda: read_json(EmbedRequest, BODY),
        "tokenizer, with ids cut": lambda: tokenizer.encode([TEXT], "", TruncationRules(truncate=True)),
        "check and normalize": lambda: (np.isfinite(row).all(), normalize(row)),
        "JSON out": lambda: write_number_arrays(row, 0),
        "metrics": lambda: metrics.request_done("/embed", 200, 0.01, facts),
    }
    print(f"one /embed without sockets: {whole:.0f} us of CPU, of which")
    known = 0.0
    for name, part in parts.items():
        took = min(timeit.repeat(part, number=2_000, repeat=5)) / 2_000 * 1e6
        known += took
        print(f"  {name:28}{took:6.1f} us {took / whole:6.0%}")
    rest = whole - known
    print(f"  {'queue, thread, loop, ASGI':28}{rest:6.1f} us {rest / whole:6.0%}")


async def _application_seconds(count: int) -> float:
    """CPU seconds of one request, from 64 clients that call the application directly."""
    null = NullApplication()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(_: object) -> None:
        """Nobody reads it."""

    async def client() -> None:
        for _ in range(count // 64):
            scope = {**SCOPE, "headers": headers}
            await null.app(scope, receive, send)

    await asyncio.gather(*(client() for _ in range(16)))
    started = time.process_time()
    await asyncio.gather(*(client() for _ in range(64)))
    took = time.process_time() - started
    null.dispatcher.close("done")
    return took / (count // 64 * 64)


def measure_answers() -> None:
    vectors = np.random.default_rng(0).standard_normal((32, 1024), dtype=np.float32)
    for name, writer in (
        ("/embed JSON", write_number_arrays),
        ("/v1/embeddings JSON", write_openai_numbers),
        ("/v1/embeddings base64", write_openai_base64),
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
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of load for each route")
    parser.add_argument("--connections", type=int, default=64)
    options = parser.parse_args()
    measure_answers()
    measure_parts()
    measure_requests(options.seconds, options.connections)


if __name__ == "__main__":
    main()
