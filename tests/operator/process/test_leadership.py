"""The Lease is held on a thread of its own: by one that is busy, and not by one that hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from embedserve_operator.clock import Clock
from embedserve_operator.errors import LeaseLostError
from embedserve_operator.process.leadership import MAX_SILENCE_SECONDS, Leadership, run_election
from embedserve_operator.process.lease import Candidate
from embedserve_operator.settings import LeaseSettings
from tests.operator.api_server import ApiServer, serving
from tests.operator.moments import NOON

# By the clock that a test turns; only the pauses are real.
LEASE = LeaseSettings(namespace="system", duration=15.0, deadline=12.0, retry=0.1, poll_interval=0.1)
TIMEOUT_S = 60


class SetClock:
    """Goes on when it is told to; tells when a moment has come."""

    def __init__(self, moment: float = 0.0) -> None:
        self.reached = threading.Event()
        self._now = 0.0
        self._moment = moment

    def __call__(self) -> float:
        return self._now

    def go_on(self, seconds: float) -> None:
        self._now += seconds
        if self._now >= self._moment:
            self.reached.set()


class SlowServer(ApiServer):
    """Each write of the Lease takes so many seconds of the clock."""

    def __init__(self, clock: SetClock, seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds

    def _write(self, method: str, body: Any) -> web.StreamResponse:
        self._clock.go_on(self._seconds)
        return super()._write(method, body)


Serve = Callable[[ApiServer], ApiServer]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Serves on a thread of its own, since the tests block theirs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened: list[AbstractAsyncContextManager[ApiServer]] = []

    def start(server: ApiServer) -> ApiServer:
        opened.append(serving(server, tmp_path, monkeypatch))
        return asyncio.run_coroutine_threadsafe(opened[-1].__aenter__(), loop).result(TIMEOUT_S)

    yield start
    for context in opened:
        ending: Any = context.__aexit__(None, None, None)
        asyncio.run_coroutine_threadsafe(ending, loop).result(TIMEOUT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def opened(
    me: str, clock: SetClock, on_attempt: Callable[[], None] = lambda: None
) -> AbstractAsyncContextManager[Leadership]:
    return run_election(LEASE, Candidate(me, on_attempt), Clock(lambda: NOON, clock), request_timeout=5)


async def start_renewing(lease: Leadership) -> asyncio.Task[None]:
    """Won, and the keeping of it begun."""
    await lease.acquire()
    keeping = asyncio.create_task(lease.renew())
    await asyncio.sleep(0)
    return keeping


async def test_a_loop_that_is_busy_for_longer_than_the_lease_lasts_does_not_lose_it(serve: Serve) -> None:
    clock = SetClock(moment=LEASE.duration + 10)
    serve(SlowServer(clock, seconds=5))
    async with opened("busy", clock) as lease:
        keeping = await start_renewing(lease)
        assert clock.reached.wait(TIMEOUT_S), "nobody renewed the Lease while this loop did not turn"
        assert lease.is_leader()
        assert not keeping.done()
        keeping.cancel()


async def test_a_loop_that_hangs_loses_the_lease_and_is_told_so(serve: Serve) -> None:
    clock, attempts = SetClock(moment=MAX_SILENCE_SECONDS), threading.Semaphore(0)
    serve(SlowServer(clock, seconds=5))
    async with opened("hanging", clock, attempts.release) as lease:
        keeping = await start_renewing(lease)
        assert clock.reached.wait(TIMEOUT_S)
        while attempts.acquire(blocking=False):
            pass
        looks = [clock() for _ in range(3) if attempts.acquire(timeout=TIMEOUT_S)]
        assert looks[1] == looks[2], "the Lease is renewed for a loop that hangs"
        assert lease.is_leader()
        clock.go_on(LEASE.deadline)
        assert not lease.is_leader()
        with pytest.raises(LeaseLostError):
            await keeping


async def test_who_loses_the_lease_to_another_is_told_so(serve: Serve) -> None:
    server = serve(ApiServer())
    async with opened("first", SetClock()) as lease:
        keeping = await start_renewing(lease)
        assert server.lease is not None
        spec = {**server.lease["spec"], "holderIdentity": "second"}
        server.lease = {**server.lease, "metadata": {"resourceVersion": "9"}, "spec": spec}
        with pytest.raises(LeaseLostError, match="second has taken the Lease"):
            await keeping


async def test_an_orderly_end_gives_the_lease_back_and_ends_the_thread(serve: Serve) -> None:
    server = serve(ApiServer())
    async with opened("first", SetClock()) as lease:
        keeping = await start_renewing(lease)
        keeping.cancel()
        await lease.release()
        assert server.lease is not None
        assert server.lease["spec"]["holderIdentity"] == ""
    assert "lease" not in {thread.name for thread in threading.enumerate()}
