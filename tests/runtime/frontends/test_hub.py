"""Front ends and the dispatcher over real sockets, in one loop: outcomes, refusals, cancellation, death."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import pytest

from embedserve_runtime.engines.base import FloatArray, Int32Array, PackedBatch
from embedserve_runtime.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    EmbedserveError,
    EngineFailure,
    NotReady,
    Overloaded,
)
from embedserve_runtime.frontends.frames import Frame
from embedserve_runtime.frontends.hub import Hub
from embedserve_runtime.frontends.link import Link
from embedserve_runtime.frontends.remote import RemoteDispatcher
from embedserve_runtime.frontends.setup import request_series
from embedserve_runtime.results import Output
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.scheduling.work import Completed, Order
from embedserve_runtime.telemetry.metrics import Metrics
from tests.runtime.serve_kit import GatedRun, Run, TinyRunner, mean_of_ids

LIMITS = Limits(64, 1_000, 10)
LATER = 3_600.0


@dataclass
class Remote:
    dispatcher: RemoteDispatcher
    link: Link


@asynccontextmanager
async def served(run: Run, remotes: int = 1) -> AsyncIterator[tuple[Dispatcher, list[Remote]]]:
    metrics = Metrics(request_series())
    hub = Hub(metrics, metrics.page)
    dispatcher = Dispatcher([TinyRunner(run)], LIMITS, clock=perf_counter, observer=hub)
    hub.open(dispatcher)
    made = []
    for _ in range(remotes):
        ours, theirs = socket.socketpair()
        await hub.connect(ours, lambda: None)
        made.append(await remote_on(theirs))
    try:
        yield dispatcher, made
    finally:
        dispatcher.close("the test is over")
        for one in made:
            one.link.close()


async def remote_on(sock: socket.socket) -> Remote:
    def received(frame: Frame) -> None:
        remote.dispatcher.received(frame)

    link = await Link.over(sock, received, lambda: remote.dispatcher.close("the engine is gone"))
    remote = Remote(RemoteDispatcher(link, LIMITS), link)
    return remote


def order(*sequences: Int32Array) -> Order:
    return Order(sequences, Output.DENSE)


def ids(*values: int) -> Int32Array:
    return np.array(values, dtype=np.int32)


def submit(remote: Remote, *sequences: Int32Array, seconds: float = LATER) -> asyncio.Task[Completed]:
    return asyncio.create_task(remote.dispatcher.submit(order(*sequences), perf_counter() + seconds))


async def until_queued(dispatcher: Dispatcher, inputs: int) -> None:
    while dispatcher.queued_inputs != inputs:  # noqa: ASYNC110  # turns of the loop, no time
        await asyncio.sleep(0)


async def test_rows_come_back_to_the_front_end_that_asked() -> None:
    async with served(mean_of_ids(), remotes=3) as (_, remotes):
        tasks = [submit(remotes[index % 3], ids(index, index + 1), ids(5)) for index in range(4)]
        outcomes = await asyncio.gather(*tasks)
    for index, done in enumerate(outcomes):
        want_rows = mean_of_ids()(PackedBatch.pack([ids(index, index + 1), ids(5)]))
        np.testing.assert_array_equal(done.results.dense, want_rows)


async def test_a_cancelled_request_leaves_the_queue_of_the_engine_and_never_runs() -> None:
    gate = GatedRun()
    async with served(gate) as (dispatcher, (remote,)):
        first = submit(remote, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        gone, stays = submit(remote, ids(7, 7)), submit(remote, ids(2))
        await until_queued(dispatcher, 2)
        gone.cancel()
        await until_queued(dispatcher, 1)
        gate.release()
        await asyncio.gather(first, stays)
    assert [batch.token_ids.tolist() for batch in gate.batches] == [[1], [2]]


async def test_a_front_end_that_dies_takes_only_its_own_requests_along() -> None:
    gate = GatedRun()
    async with served(gate, remotes=2) as (dispatcher, (dying, other)):
        first = submit(other, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        lost, kept = submit(dying, ids(7)), submit(other, ids(2))
        await until_queued(dispatcher, 2)
        dying.link.close()
        await until_queued(dispatcher, 1)
        gate.release()
        await asyncio.gather(first, kept)
        with pytest.raises(NotReady):
            await lost
    assert [batch.token_ids.tolist() for batch in gate.batches] == [[1], [2]]


async def test_a_full_queue_is_known_to_front_ends_before_they_tokenise_and_so_is_its_end() -> None:
    gate = GatedRun()
    async with served(gate, remotes=2) as (dispatcher, (one, other)):
        running = submit(one, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        waiting = submit(one, *[ids(2)] * 10)
        await until_queued(dispatcher, 10)
        while not is_full(other):  # noqa: ASYNC110  # turns of the loop, no time
            await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await submit(one, ids(3))
        gate.release()
        await asyncio.gather(running, waiting)
        while is_full(other):  # noqa: ASYNC110  # turns of the loop, no time
            await asyncio.sleep(0)


def is_full(remote: Remote) -> bool:
    try:
        remote.dispatcher.check_room(1)
    except Overloaded:
        return True
    return False


def failing(batch: PackedBatch) -> FloatArray:
    raise EngineFailure(f"cannot run {batch.tokens} tokens")


async def test_failures_reach_the_front_end_as_what_they_are() -> None:
    async with served(failing) as (_, (remote,)):
        cases: list[tuple[type[EmbedserveError], asyncio.Task[Completed]]] = [
            (EngineFailure, submit(remote, ids(1))),
            (BatchTooLarge, submit(remote, *[ids(1)] * 11)),
        ]
        for kind, task in cases:
            with pytest.raises(kind):
                await task


async def test_a_passed_deadline_is_told_while_the_engine_is_busy() -> None:
    gate = GatedRun()
    async with served(gate) as (_, (remote,)):
        with pytest.raises(DeadlineExceeded):
            await submit(remote, ids(1), seconds=0.001)
        gate.release()


async def test_closing_the_dispatcher_fails_what_is_on_its_way() -> None:
    gate = GatedRun()
    async with served(gate) as (dispatcher, (remote,)):
        running = submit(remote, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        dispatcher.close("the process is shutting down")
        with pytest.raises(NotReady, match="shutting down"):
            await running
        gate.release()
