"""A front-end process: `python -m embedserve_runtime.frontends.worker ADDRESS IDENTITY MEMORY SERVING [PINNED]`.

ADDRESS and IDENTITY are those of ZeroMQ, the others are file descriptors.
It lives as long as the process that has started it, which holds the other end of its standard input. It ignores
signals, and does what it is told over the channel.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import mmap
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

import uvloop

from embedserve_runtime.frontends.front_end_channel import FrontEndChannel
from embedserve_runtime.frontends.messages import (
    Configure,
    EngineMessage,
    MetricsPageReply,
    MetricsPageRequest,
    ModelOpened,
    QueueDepthChanged,
    Ready,
    RequestCompleted,
    RequestFailed,
    ServerStatus,
    Stop,
)
from embedserve_runtime.frontends.remote_dispatcher import RemoteDispatcher
from embedserve_runtime.frontends.servers import Servers
from embedserve_runtime.frontends.setup import (
    Opening,
    Setup,
    Told,
    prepare_process,
    request_series,
    server_context,
    unpickled,
)
from embedserve_runtime.server.sockets import Ports
from embedserve_runtime.service import EmbeddingService
from embedserve_runtime.service.readiness import Phase, Readiness
from embedserve_runtime.telemetry.logs import configure_logs
from embedserve_runtime.telemetry.redaction import redactor_for
from embedserve_runtime.telemetry.requests import RequestMetrics
from embedserve_runtime.telemetry.series import row_from_memory
from embedserve_runtime.tokenizing import TextTokenizer

if TYPE_CHECKING:
    from embedserve_runtime.telemetry.tracing import RequestTracer

log = logging.getLogger(__name__)


class Worker:
    def __init__(self, ports: Ports, memory: int) -> None:
        self._ports = ports
        series = request_series()
        self._metrics = RequestMetrics(series, row_from_memory(memoryview(mmap.mmap(memory, 0))))
        self._readiness = Readiness()
        self._told = Told(self._readiness.phase, self._readiness.message)
        self._pages: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = itertools.count(1)
        self._setup: Setup | None = None
        self._servers: Servers | None = None
        self._dispatcher: RemoteDispatcher | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._channel: FrontEndChannel | None = None
        self._tracer: RequestTracer | None = None

    async def live(self, address: str, identity: bytes) -> None:
        """Returns after a stop that was asked for, when all is answered."""
        self._channel = FrontEndChannel(address, identity, self._received, _end)
        await self._stop.wait()
        if self._servers:
            self._servers.stop()
            await self._servers.finished()
        if self._tracer:
            await asyncio.to_thread(self._tracer.flush)

    def _received(self, message: EngineMessage) -> None:
        match message:
            case RequestCompleted() | RequestFailed() | QueueDepthChanged():
                if self._dispatcher:
                    self._dispatcher.receive(message)
            case Configure():
                self._set_up(unpickled(message.setup))
            case ServerStatus():
                self._told = unpickled(message.told)
                self._move()
            case ModelOpened():
                task = asyncio.get_running_loop().create_task(self._open(unpickled(message.opening)))
                self._tasks.add(task)
                task.add_done_callback(self._opened)
            case MetricsPageReply():
                if (asked := self._pages.pop(message.request, None)) and not asked.done():
                    asked.set_result(message.page)
            case Stop():
                self._stop.set()

    def _set_up(self, setup: Setup) -> None:
        self._setup = setup
        configure_logs(setup.log_level, redactor_for(setup.server.api_keys))
        if not setup.waits:
            self._accept(setup)

    def _accept(self, setup: Setup) -> None:
        context = server_context(setup, self._readiness, self._metrics, self._page)
        self._tracer = context.tracer
        self._servers = Servers(setup.server, self._ports, context)

    async def _open(self, opening: Opening) -> None:
        assert self._setup is not None, "comes first"
        assert self._channel is not None, "connected"
        tokenizer = await asyncio.to_thread(TextTokenizer.from_card, opening.card)
        self._dispatcher = RemoteDispatcher(self._channel, opening.limits)
        service = EmbeddingService(
            opening.card,
            tokenizer,
            self._dispatcher,
            self._setup.batching,
            time.perf_counter,
            engines=opening.engines,
        )
        # What is alive now stays alive: later collections need not look at it.
        gc.collect()
        gc.freeze()
        self._readiness.open(service)
        self._move()
        if self._servers is None and not self._stop.is_set():
            self._accept(self._setup)
        self._channel.send(Ready())

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("cannot serve in a front-end process", exc_info=error)
            os._exit(1)

    def _move(self) -> None:
        """To where the server stands, but not to ready without a service."""
        self._readiness.current_space = self._told.current_space
        if self._dispatcher or self._told.phase in {Phase.LOADING, Phase.WARMING_UP}:
            self._readiness.move(self._told.phase, self._told.message)

    async def _page(self) -> bytes:
        assert self._channel is not None, "connected"
        number = next(self._numbers)
        self._pages[number] = asyncio.get_running_loop().create_future()
        self._channel.send(MetricsPageRequest(number))
        try:
            return await self._pages[number]
        finally:
            self._pages.pop(number, None)


def _end() -> None:
    """Nothing can be answered any more; the reason is in a log."""
    os._exit(1)


def _end_with(handle: int) -> None:
    """End at once when the other end of a pipe is closed, which the kernel does when its process dies of whatever."""

    def read() -> None:
        if not os.read(handle, 1):
            _end()

    asyncio.get_running_loop().add_reader(handle, read)


async def _live(address: str, identity: str, memory: int, serving: int, pinned: int | None = None) -> None:
    _end_with(sys.stdin.fileno())
    ports = Ports(socket.socket(fileno=serving), None if pinned is None else socket.socket(fileno=pinned))
    await Worker(ports, memory).live(address, identity.encode())


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    prepare_process()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        address, identity, *handles = sys.argv[1:]
        runner.run(_live(address, identity, *map(int, handles)))
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
