"""Everything at once: random disconnects, deadlines and a full queue against the real server with a null engine.

`make soak` runs it with 10,000 requests (EMBEDSERVE_STRESS_REQUESTS).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import time
from collections import Counter

import numpy as np

from embedserve_runtime.api.memory import RequestMemory
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.telemetry.metrics import resident_bytes
from tests.support.in_process_server import InProcessServer, count_open_requests, listen, serve_in_process
from tests.support.tiny_models import DIMENSIONS

REQUESTS = int(os.environ.get("EMBEDSERVE_STRESS_REQUESTS", "400"))
CLIENTS = 48
LIMITS = Limits(batch_tokens=64, queue_tokens=2_000, queue_inputs=12)
# What a client may be answered; 499 is what the server notes of one that has left.
ANSWERS = {200, 400, 422, 429, 504}
LEFT = 499
# Those that every run brings up. A full queue and a deadline take a machine that is busy enough: so many requests do.
CERTAIN = {200, 400, 422, LEFT} if REQUESTS < 10_000 else ANSWERS | {LEFT}
# After the first tenth, which fills caches and pools of memory.
GROWTH_BYTES = 24 * 2**20

SERIES = {"route": "/embed"}


def uneven(batch: PackedBatch) -> FloatArray:
    """Rows of ones, after up to 2 ms for every batch."""
    time.sleep(batch.tokens % 5 / 2_000)
    return np.ones((len(batch.lengths), DIMENSIONS), dtype=np.float32)


def request_of(chance: random.Random) -> bytes:
    """Mostly good requests of one to six inputs, some with a deadline, some wrong."""
    kind = chance.choices(("good", "deadline", "wrong", "not json"), (75, 15, 5, 5))[0]
    body = json.dumps({"inputs": ["hello world " * chance.randint(1, 8)] * chance.randint(1, 6)}).encode()
    if kind == "wrong":
        body = b'{"inputs": 1.5}'
    elif kind == "not json":
        body = b"{"
    deadline = "x-embedserve-timeout: 0.002\r\n" if kind == "deadline" else ""
    head = f"POST /embed HTTP/1.1\r\nhost: a\r\n{deadline}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def ask(port: int, chance: random.Random) -> int:
    """One request on a connection of its own: its status, or 499 when the client left without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = request_of(chance)
        patience = chance.choice((None, None, None, 0, 1, 10))
        if patience is None:
            writer.write(data)
            first = await reader.readline()
            assert await reader.readuntil(b"\r\n\r\n")
            return int(first.split()[1])
        # Leaves in the middle of the body, or some turns of the loop after the last byte.
        writer.write(data if patience else data[:-1])
        await writer.drain()
        for _ in range(patience):
            await asyncio.sleep(0)
        return LEFT
    finally:
        writer.close()


async def run_clients(port: int, seeds: range) -> Counter[int]:
    """Statuses as clients saw them, one request a seed. Raises what a client met that is no outcome."""
    outcomes: Counter[int] = Counter()
    remaining = iter(seeds)

    async def client() -> None:
        for seed in remaining:
            outcomes[await ask(port, random.Random(seed))] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    return outcomes


def counted(server: InProcessServer) -> Counter[int]:
    samples = {
        status: int(server.get_metric("embedserve_requests_total", SERIES | {"status": str(status)}) or 0)
        for status in (*ANSWERS, LEFT, 500, 503)
    }
    return Counter({status: count for status, count in samples.items() if count})


def total(server: InProcessServer, name: str, label: str, values: tuple[str, ...]) -> float:
    return sum(server.get_metric(name, {label: value}) or 0.0 for value in values)


async def test_every_request_has_one_outcome_and_the_server_is_as_before() -> None:
    memory = RequestMemory(2**20, 2**24)
    async with serve_in_process(uneven, limits=LIMITS, memory=memory) as server:
        async with listen(server) as port:
            outcomes = await run_clients(port, range(REQUESTS // 10))
            gc.collect()
            before = resident_bytes(os.getpid())
            outcomes += await run_clients(port, range(REQUESTS // 10, REQUESTS))
            while server.get_metric("embedserve_requests_in_flight") or server.get_metric(  # noqa: ASYNC110  # turns of the loop
                "embedserve_connections"
            ):
                await asyncio.sleep(0)
        gc.collect()
        assert resident_bytes(os.getpid()) - before < GROWTH_BYTES
        assert memory.pending == 0
        assert (server.dispatcher.queued_inputs, server.dispatcher.queued_tokens) == (0, 0)
        assert count_open_requests(server.dispatcher) == 0

        samples = counted(server)
        assert outcomes.total() == samples.total() == REQUESTS
        assert CERTAIN <= set(outcomes) <= ANSWERS | {LEFT}
        assert set(samples) <= ANSWERS | {LEFT}
        # Who leaves late may have been answered already; everybody else's answer is counted as what it was.
        for status in ANSWERS:
            assert 0 <= samples[status] - outcomes[status] <= outcomes[LEFT], status

        count = total(server, "te_request_count", "method", ("single", "batch"))
        success = total(server, "te_request_success", "method", ("single", "batch"))
        causes = tuple(labels[0] for labels in server.metrics.series.failures.members)
        assert count == REQUESTS == success + total(server, "te_request_failure", "err", causes)
        assert success == samples[200]
