"""Has the engine give back memory once requests have stopped coming.

An engine gives back what large batches took with the first small batch after a while (`engines.onnx.arena_usage`).
Where no request brings one, this does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.scheduling.batches import BatchRequest
from embedserve_runtime.scheduling.dispatcher import Dispatcher

# Longer than the engine waits for a large batch.
IDLE_SECONDS = 60.0
RUN_SECONDS = 60.0


async def release_memory_when_idle(dispatcher: Dispatcher, small: BatchRequest) -> None:
    """Run a small request after each time that requests came and then none for `IDLE_SECONDS`; never returns."""
    released = before = dispatcher.num_admitted
    while True:
        await asyncio.sleep(IDLE_SECONDS)
        admitted = dispatcher.num_admitted
        if admitted == before != released and dispatcher.is_idle:
            # The queue may be full by now, or closed.
            with contextlib.suppress(EmbedserveError):
                await dispatcher.submit(small, time.perf_counter() + RUN_SECONDS)
            admitted = released = dispatcher.num_admitted
        before = admitted
