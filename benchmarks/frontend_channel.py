"""What the channel between a front end and the engine's process costs, in CPU time of the engine's process, next to the
same bytes over a bare Unix socket: `python -m benchmarks.frontend_channel`.

A process of its own sends requests of 32 texts with 50 tokens each at a steady rate, and takes 32 rows of 768 numbers
for each; the engine's process answers at once, without a queue and without an engine.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import uvloop

from embedserve_runtime.forward.batch import FlatTokens
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.frontends.context import build_request_series
from embedserve_runtime.frontends.engine_channel import EngineChannel
from embedserve_runtime.frontends.front_end_channel import FrontEndChannel
from embedserve_runtime.frontends.interpreter import tune_interpreter
from embedserve_runtime.frontends.messages import (
    EngineMessage,
    QueueDepthChanged,
    RequestCompleted,
    RequestFailed,
)
from embedserve_runtime.frontends.remote_dispatcher import RemoteDispatcher
from embedserve_runtime.scheduling.batches import BatchRequest, CompletedRequest, RequestCallback
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits, QueueDepth
from embedserve_runtime.telemetry.metrics import Metrics

TEXTS, TOKENS, DIMENSIONS = 32, 50, 768
RATE, SECONDS, UNCOUNTED = 2_000, 5, 500
IDENTITY = b"front-end"
LIMITS = Limits(16_384, 1_000_000, 20_000)
REQUEST_BYTES, ANSWER_BYTES = 4 * TEXTS * TOKENS, 4 * TEXTS * DIMENSIONS


class Counted:
    """Takes the CPU time of this process from the `UNCOUNTED`th request to the last one."""

    def __init__(self, requests: int) -> None:
        self.done = asyncio.Event()
        self._left = requests + UNCOUNTED
        self._requests = requests
        self._begun = 0.0
        self.seconds = 0.0

    def one(self) -> None:
        self._left -= 1
        if self._left == self._requests:
            self._begun = time.process_time()
        elif self._left == 0:
            self.seconds = time.process_time() - self._begun
            self.done.set()


class Answering:
    """In place of the dispatcher: every request is answered at the end of this turn of the loop."""

    limits = LIMITS
    queue_depth = QueueDepth(0, 0, None)

    def __init__(self, counted: Counted) -> None:
        rows = np.random.default_rng(1).standard_normal((2 * TEXTS, DIMENSIONS), dtype=np.float32)
        self._completed = CompletedRequest(ModelOutput(rows[TEXTS:]), 0.0, 0.0)
        self._counted = counted

    def start(self, request: BatchRequest, deadline: float, settle: RequestCallback) -> int:
        asyncio.get_running_loop().call_soon(self._settle, settle)
        return 1

    def abort(self, request_id: int) -> None:
        pass

    def _settle(self, settle: RequestCallback) -> None:
        settle(self._completed)
        self._counted.one()


async def channel_seconds() -> float:
    """CPU seconds of this process for all requests through the channel."""
    metrics, counted = Metrics(build_request_series()), Counted(RATE * SECONDS)
    channel = EngineChannel(metrics, metrics.page)
    channel.open(cast(Dispatcher, Answering(counted)))
    peer = channel.add(IDENTITY, on_hello=lambda _: None, on_ready=lambda: None, on_failure=lambda: None)
    process = await started("channel", channel.address)
    await counted.done.wait()
    process.kill()
    await process.wait()
    channel.remove(peer)
    channel.close()
    return counted.seconds


async def bare_seconds() -> float:
    """CPU seconds of this process for as many bytes over a Unix socket."""
    counted = Counted(RATE * SECONDS)
    answer = bytes(ANSWER_BYTES)
    ours, theirs = socket.socketpair()
    with theirs:
        process = await started("bare", str(theirs.fileno()), pass_fds=[theirs.fileno()])
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    while not counted.done.is_set():
        await reader.readexactly(REQUEST_BYTES)
        writer.write(answer)
        counted.one()
    process.kill()
    await process.wait()
    writer.close()
    return counted.seconds


async def started(*arguments: str, pass_fds: Sequence[int] = ()) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", __spec__.name, *arguments)
    return await asyncio.create_subprocess_exec(*command, pass_fds=pass_fds)


async def paced(send: Callable[[], None]) -> None:
    """Call it at the rate, for ever."""
    begun, sent = time.perf_counter(), 0
    while True:
        due = int((time.perf_counter() - begun) * RATE)
        for _ in range(due - sent):
            send()
        sent = due
        await asyncio.sleep(1 / RATE)


async def channel_front_end(address: str) -> None:
    def receive(message: EngineMessage) -> None:
        assert isinstance(message, QueueDepthChanged | RequestCompleted | RequestFailed)
        dispatcher.receive(message)

    def settle(outcome: CompletedRequest | Exception) -> None:
        assert isinstance(outcome, CompletedRequest)

    ids = np.arange(TEXTS * TOKENS, dtype=np.int32)
    request = BatchRequest(FlatTokens.build(ids, np.full(TEXTS, TOKENS, dtype=np.int32)), OutputKind.DENSE)
    channel = FrontEndChannel(address, IDENTITY, receive, sys.exit)
    dispatcher = RemoteDispatcher(channel, LIMITS)
    await paced(lambda: cast(None, dispatcher.start(request, time.perf_counter() + 60, settle)))


async def bare_front_end(descriptor: str) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=int(descriptor)))
    request = bytes(REQUEST_BYTES)
    pacing = asyncio.create_task(paced(lambda: writer.write(request)))
    while True:
        await reader.readexactly(ANSWER_BYTES)
        assert not pacing.done()


def main() -> None:
    tune_interpreter()
    match sys.argv[1:]:
        case ["channel", address]:
            uvloop.run(channel_front_end(address))
        case ["bare", descriptor]:
            uvloop.run(bare_front_end(descriptor))
        case _:
            bare, channel = uvloop.run(bare_seconds()), uvloop.run(channel_seconds())
            print(
                f"{RATE} requests/s: {channel / SECONDS:.2f} cores, {1e6 * channel / RATE / SECONDS:.0f} us each"
            )
            print(f"{channel / bare:.2f} times the CPU time of the same bytes over a bare Unix socket")


if __name__ == "__main__":
    main()
