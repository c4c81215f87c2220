"""An engine counts as broken when it fails on what it ran before, several times in a row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.scheduling.batches import BatchRequest
from embedserve_runtime.scheduling.health import PROBES, EngineMonitor
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_runners import build_mean_run

PROBE = BatchRequest([np.array([2, 3], dtype=np.int32)], OutputKind.DENSE)
POISON = 13


def watched(server: InProcessServer, on_broken: Callable[[str], None]) -> None:
    clock = asyncio.get_running_loop().time
    server.dispatcher.on_batch_failed = EngineMonitor(server.dispatcher, PROBE, clock, on_broken).batch_failed


def failing(
    is_broken: Callable[[PackedBatch], bool],
) -> tuple[Callable[[PackedBatch], FloatArray], list[int]]:
    """An engine that fails on some batches, and the number of tokens of each that it was given."""
    good, batches = build_mean_run(), list[int]()

    def run(batch: PackedBatch) -> FloatArray:
        batches.append(batch.tokens)
        if is_broken(batch):
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE")
        return good(batch)

    return run, batches


async def test_an_engine_that_fails_on_everything_is_broken_with_its_library_s_words() -> None:
    messages: asyncio.Queue[str] = asyncio.Queue()
    run, batches = failing(lambda _: True)
    async with serve_in_process(run) as server:
        watched(server, messages.put_nowait)
        answer = await server.client.post("/embed", json={"inputs": "hello"})
        assert await messages.get() == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert answer.status_code == 500
    assert "CUDA" not in answer.text
    assert len(batches) == 1 + PROBES
    assert messages.empty(), "it is said once"


async def test_an_input_that_the_engine_cannot_take_does_not_make_it_broken() -> None:
    messages: list[str] = []
    run, _ = failing(lambda batch: POISON in batch.token_ids)
    async with serve_in_process(run) as server:
        watched(server, messages.append)
        for _ in range(2 * PROBES):
            poisoned = await server.client.post("/embed", json={"inputs": [[POISON]]})
            fine = await server.client.post("/embed", json={"inputs": "hello"})
            assert (poisoned.status_code, fine.status_code) == (500, 200)
    assert messages == []


async def test_an_engine_that_recovers_is_not_broken() -> None:
    messages: list[str] = []
    remaining = [PROBES]
    loop, recovered = asyncio.get_running_loop(), asyncio.Event()

    def is_broken(_: PackedBatch) -> bool:
        remaining[0] -= 1
        if remaining[0] < 0:
            loop.call_soon_threadsafe(recovered.set)
        return remaining[0] >= 0

    run, _ = failing(is_broken)
    async with serve_in_process(run) as server:
        watched(server, messages.append)
        first = await server.client.post("/embed", json={"inputs": "hello"})
        await recovered.wait()  # until then the probes take the failures, or else the next request would
        later = await server.client.post("/embed", json={"inputs": "hello"})
    assert (first.status_code, later.status_code) == (500, 200)
    assert messages == []
