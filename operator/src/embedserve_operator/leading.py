"""Holding the Lease on a thread with an event loop and a connection of its own.

A loop that is busy for seconds, with passes over thousands of resources or because the machine has no time for it, then
does not lose the Lease. One that hangs for good does: while it gives no sign of life nothing is renewed, and another
process takes over.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from embedserve_operator.kube import Kube
from embedserve_operator.lease import Elector
from embedserve_operator.settings import LeaseSettings

_BETWEEN_SIGNS_SECONDS = 1.0
SILENCE_SECONDS = 30.0
"""So long the working loop may be busy with one thing and still lead."""


class Leading:
    """The working loop's view of the Lease; see `Elector` for what the methods do."""

    def __init__(self, elector: Elector, loop: asyncio.AbstractEventLoop) -> None:
        """loop: the one that runs on the other thread."""
        self._elector = elector
        self._loop = loop

    async def win(self) -> None:
        await _there(self._elector.win(), self._loop)

    async def keep(self) -> None:
        await _there(self._elector.keep(), self._loop)

    async def release(self) -> None:
        await _there(self._elector.release(), self._loop)

    def leads(self) -> bool:
        return self._elector.leads()


@asynccontextmanager
async def leading(
    settings: LeaseSettings,
    me: str,
    *,
    request_timeout: float,
    now: Callable[[], datetime],
    on_attempt: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Leading]:
    """The thread runs inside. on_attempt: called on it before each look at the Lease."""
    signs = _Signs(clock)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_turn, args=(loop,), name="lease", daemon=True)
    thread.start()
    giving = asyncio.create_task(signs.give(), name="signs of life")
    try:
        kube = Kube(request_timeout=request_timeout)
        await _there(kube.__aenter__(), loop)
        try:
            elector = Elector(
                kube, settings, me, now=now, on_attempt=on_attempt, clock=clock, is_alive=signs.are_recent
            )
            yield Leading(elector, loop)
        finally:
            await _there(kube.__aexit__(None, None, None), loop)
    finally:
        giving.cancel()
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)


class _Signs:
    """Signs of life of the loop on which they are given; read on any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()

    async def give(self) -> None:
        while True:
            self._last = self._clock()
            await asyncio.sleep(_BETWEEN_SIGNS_SECONDS)

    def are_recent(self) -> bool:
        return self._clock() - self._last < SILENCE_SECONDS


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    """Until the loop is stopped; what still runs on it is cancelled."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


async def _there(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Runs it on the loop of the other thread; a cancellation reaches it there before what is asked for next."""
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
