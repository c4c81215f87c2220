"""Threads that clients take turns on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from embedserve_runtime.scheduling.clients import Client
from embedserve_runtime.service.current_client import begin_request
from embedserve_runtime.service.fair_thread_pool import SHARED_SECONDS, FairThreadPool

THREADS = 2


class Work:
    """Functions that wait until they are let go, for one client after the other. now: of the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.threads = FairThreadPool(THREADS, "test", lambda: self.now)
        self.begun: list[str | None] = []
        self._has_begun = asyncio.Semaphore(0)
        self._gates: list[threading.Event] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False

    def add(self, *clients: str | None) -> None:
        """Have a function of each client run, in this order."""
        for client in clients:
            self._tasks.append(asyncio.create_task(self._run(client)))

    async def _run(self, client: str | None) -> None:
        begin_request(None if client is None else Client(client))
        loop, gate = asyncio.get_running_loop(), threading.Event()

        def function() -> None:
            loop.call_soon_threadsafe(self._note, client, gate)
            gate.wait()

        await self.threads.run(function)

    def _note(self, client: str | None, gate: threading.Event) -> None:
        self.begun.append(client)
        self._gates.append(gate)
        self._has_begun.release()
        if self._is_over:
            gate.set()

    async def wait_until_begun(self, count: int) -> list[str | None]:
        """Return the clients of the next functions that run."""
        for _ in range(count):
            await self._has_begun.acquire()
        return self.begun[-count:]

    async def end_first(self) -> None:
        """Let go the function that has run for longest, and wait for its end."""
        self._gates.pop(0).set()
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        self._tasks = [task for task in self._tasks if not task.done()]

    async def end_all(self) -> None:
        """Let go all functions, those that begin later too."""
        self._is_over = True
        for gate in self._gates:
            gate.set()
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def new_work() -> AsyncIterator[Work]:
    work = Work()
    try:
        yield work
    finally:
        await work.end_all()
        work.threads.close()


async def test_a_client_alone_has_all_threads() -> None:
    async with new_work() as work:
        work.add("large", "large", "large")
        assert await work.wait_until_begun(2) == ["large", "large"]


async def test_requests_that_are_not_told_apart_run_in_the_order_they_came() -> None:
    async with new_work() as work:
        work.add(None, None, None, None)
        await work.wait_until_begun(2)
        await work.end_first()
        assert await work.wait_until_begun(1) == [None]


async def test_a_client_with_one_request_is_next_whatever_another_has_waiting() -> None:
    async with new_work() as work:
        work.add("large", "large", "large", "large", "large")
        await work.wait_until_begun(2)
        work.add("small")
        await asyncio.sleep(0)
        await work.end_first()
        assert await work.wait_until_begun(1) == ["small"]


async def test_a_client_leaves_a_thread_free_while_there_are_others() -> None:
    async with new_work() as work:
        work.add("small")
        await work.wait_until_begun(1)
        await work.end_first()
        work.add("large", "large", "large")
        await work.wait_until_begun(1)
        work.add("small")
        assert await work.wait_until_begun(1) == ["small"], "it did not wait for a thread"
        await work.end_first()
        assert await work.wait_until_begun(1) == ["large"]


async def test_once_no_other_has_sent_anything_for_a_while_a_client_has_all_threads_again() -> None:
    async with new_work() as work:
        work.add("small")
        await work.wait_until_begun(1)
        await work.end_first()
        work.now += SHARED_SECONDS
        work.add("large", "large")
        assert await work.wait_until_begun(2) == ["large", "large"]


def raise_value_error() -> None:
    raise ValueError("of the function")


@pytest.mark.parametrize(
    ("function", "want"),
    [
        pytest.param(lambda: 7, 7, id="what it returns"),
        pytest.param(raise_value_error, ValueError("of the function"), id="what it raises"),
    ],
)
async def test_the_outcome_is_that_of_the_function(function: Callable[[], object], want: object) -> None:
    threads = FairThreadPool(THREADS, "test", lambda: 0.0)
    (got,) = await asyncio.gather(threads.run(function), return_exceptions=True)
    assert repr(got) == repr(want)
    threads.close()


async def test_what_nobody_waits_for_any_more_does_not_begin() -> None:
    async with new_work() as work:
        work.add("large", "large")
        await work.wait_until_begun(2)
        abandoned = asyncio.create_task(work.threads.run(lambda: work.begun.append("gone")))
        await asyncio.sleep(0)
        abandoned.cancel()
        work.add("small")
        await asyncio.sleep(0)
        await work.end_first()
        await work.wait_until_begun(1)
        assert "gone" not in work.begun
