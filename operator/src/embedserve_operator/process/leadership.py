"""Holds the Lease on a thread with an event loop and a connection of its own.

So a main loop that is busy for seconds, with passes over thousands of resources or because the machine has
no time for it, does not lose the Lease. One that hangs for good does: without its heartbeat nothing is
renewed, and another process takes over.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from embedserve_operator.clock import Clock
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.process.lease import Candidate, LeaderElector
from embedserve_operator.settings import LeaseSettings

_HEARTBEAT_SECONDS = 1.0
MAX_SILENCE_SECONDS = 30.0
"""The time for which the main loop may be busy with one thing and still lead."""


class Leadership:
    """The main loop's access to the Lease; `LeaderElector` says what the methods do.

    `loop` is the one that runs on the other thread.
    """

    def __init__(self, elector: LeaderElector, loop: asyncio.AbstractEventLoop) -> None:
        self._elector = elector
        self._loop = loop

    async def acquire(self) -> None:
        await _run_on(self._elector.acquire(), self._loop)

    async def renew(self) -> None:
        await _run_on(self._elector.renew(), self._loop)

    async def release(self) -> None:
        await _run_on(self._elector.release(), self._loop)

    def is_leader(self) -> bool:
        return self._elector.is_leader()

    def get_generation(self) -> int:
        return self._elector.get_generation()


@asynccontextmanager
async def run_election(
    settings: LeaseSettings,
    candidate: Candidate,
    clock: Clock,
    *,
    request_timeout: float,
) -> AsyncIterator[Leadership]:
    """Run the election on a thread of its own inside this context.

    The candidate is alive as long as the loop that called this is. What the candidate is told, it is told on
    that thread.
    """
    heartbeat = _LoopHeartbeat(clock.monotonic)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run_loop, args=(loop,), name="lease", daemon=True)
    thread.start()
    heartbeat_task = asyncio.create_task(heartbeat.run(), name="signs of life")
    try:
        kube = KubeClient(request_timeout=request_timeout)
        await _run_on(kube.__aenter__(), loop)
        try:
            elector = LeaderElector(kube, settings, replace(candidate, is_alive=heartbeat.is_recent), clock)
            yield Leadership(elector, loop)
        finally:
            await _run_on(kube.__aexit__(None, None, None), loop)
    finally:
        heartbeat_task.cancel()
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)


class _LoopHeartbeat:
    """A heartbeat of the loop that it runs on, which any thread may read."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last = monotonic()

    async def run(self) -> None:
        while True:
            self._last = self._monotonic()
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    def is_recent(self) -> bool:
        return self._monotonic() - self._last < MAX_SILENCE_SECONDS


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped; what is still running on it is then cancelled."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


async def _run_on(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Run a coroutine on the loop of the other thread.

    A cancellation reaches it there before anything that is requested later.
    """
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
