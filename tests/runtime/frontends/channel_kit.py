"""An engine channel with front ends, over real sockets in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.frontends.context import build_request_series
from embedserve_runtime.frontends.engine_channel import EngineChannel, Peer
from embedserve_runtime.frontends.front_end_channel import FrontEndChannel
from embedserve_runtime.frontends.messages import (
    EngineMessage,
    QueueDepthChanged,
    RequestCompleted,
    RequestFailed,
)
from embedserve_runtime.frontends.remote_dispatcher import RemoteDispatcher
from embedserve_runtime.scheduling.batches import BatchRequest, CompletedRequest
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.telemetry.metrics import Metrics
from tests.support.tiny_runners import Run, TinyRunner

LIMITS = Limits(64, 1_000, 10)
LATER = 3_600.0


@dataclass
class FrontEnd:
    """One end of the channel as a front end has it, and what the engine's process knows of it.

    received: messages that are no outcomes.
    """

    limits: Limits
    channel: FrontEndChannel = field(init=False)
    dispatcher: RemoteDispatcher = field(init=False)
    peer: Peer = field(init=False)
    received: list[EngineMessage] = field(default_factory=list)
    said_hello: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def connect(self, channel: EngineChannel, identity: bytes) -> None:
        self.peer = channel.add(
            identity,
            on_hello=lambda _: self.said_hello.set(),
            on_ready=lambda: None,
            on_failure=self.ended.set,
        )
        self.channel = FrontEndChannel(channel.address, identity, self._receive, self.ended.set)
        self.dispatcher = RemoteDispatcher(self.channel, self.limits)

    def _receive(self, message: EngineMessage) -> None:
        if isinstance(message, RequestCompleted | RequestFailed):
            self.dispatcher.receive(message)
            return
        self.received.append(message)
        if isinstance(message, QueueDepthChanged):
            self.dispatcher.receive(message)


@dataclass
class Served:
    channel: EngineChannel
    dispatcher: Dispatcher
    front_ends: list[FrontEnd]


@asynccontextmanager
async def served(run: Run, front_ends: int = 1, limits: Limits = LIMITS) -> AsyncIterator[Served]:
    metrics = Metrics(build_request_series())
    channel = EngineChannel(metrics, lambda: b"the page")
    dispatcher = Dispatcher([TinyRunner(run)], limits, clock=perf_counter, observer=channel)
    channel.open(dispatcher)
    front_ends_made = [FrontEnd(limits) for _ in range(front_ends)]
    try:
        for index, front_end in enumerate(front_ends_made):
            front_end.connect(channel, b"front-end-%d" % index)
            await front_end.said_hello.wait()
        yield Served(channel, dispatcher, front_ends_made)
    finally:
        dispatcher.close("the test is over")
        for front_end in front_ends_made:
            channel.remove(front_end.peer)
            front_end.channel.close()
        channel.close()


def batch_request(*sequences: Int32Array, outputs: OutputKind = OutputKind.DENSE) -> BatchRequest:
    return BatchRequest(sequences, outputs)


def ids(*values: int) -> Int32Array:
    return np.array(values, dtype=np.int32)


def submit(
    front_end: FrontEnd, *sequences: Int32Array, seconds: float = LATER
) -> asyncio.Task[CompletedRequest]:
    return asyncio.create_task(
        front_end.dispatcher.submit(batch_request(*sequences), perf_counter() + seconds)
    )


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # turns of the loop, no time
        await asyncio.sleep(0)


async def until_queued(dispatcher: Dispatcher, inputs: int) -> None:
    await until(lambda: dispatcher.queued_inputs == inputs)
