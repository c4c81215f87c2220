"""A front-end process: `python -m embedserve_runtime.frontends.worker LINK MEMORY SERVING [PINNED]`.

Its arguments are file descriptors.
It lives as long as the process that has started it, ignores signals, and does what it is told over the link.
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

from embedserve_runtime.frontends.frames import Frame, Kind
from embedserve_runtime.frontends.link import Link
from embedserve_runtime.frontends.listening import Ports, Servers
from embedserve_runtime.frontends.remote import RemoteDispatcher
from embedserve_runtime.frontends.setup import (
    Opening,
    Setup,
    Told,
    prepare_process,
    request_series,
    surroundings,
    unpickled,
)
from embedserve_runtime.readiness import Phase, Readiness
from embedserve_runtime.service import EmbeddingService
from embedserve_runtime.telemetry.logs import configure_logs
from embedserve_runtime.telemetry.redaction import redactor_for
from embedserve_runtime.telemetry.requests import RequestMetrics
from embedserve_runtime.telemetry.series import row_in
from embedserve_runtime.tokenizing import TextTokenizer

if TYPE_CHECKING:
    from embedserve_runtime.telemetry.tracing import RequestTracer

log = logging.getLogger(__name__)


class Worker:
    def __init__(self, ports: Ports, memory: int) -> None:
        self._ports = ports
        series = request_series()
        self._metrics = RequestMetrics(series, row_in(memoryview(mmap.mmap(memory, 0))))
        self._readiness = Readiness()
        self._told = Told(self._readiness.phase, self._readiness.message)
        self._pages: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = itertools.count(1)
        self._setup: Setup | None = None
        self._servers: Servers | None = None
        self._dispatcher: RemoteDispatcher | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._link: Link | None = None
        self._tracer: RequestTracer | None = None

    async def live(self, link: socket.socket) -> None:
        """Returns after a stop that was asked for, when all is answered."""
        self._link = await Link.over(link, self._received, _engine_is_gone)
        await self._stop.wait()
        if self._servers:
            self._servers.stop()
            await self._servers.finished()
            self._servers.close()
        if self._tracer:
            await asyncio.to_thread(self._tracer.flush)

    def _received(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.DONE | Kind.FAILED | Kind.QUEUE:
                if self._dispatcher:
                    self._dispatcher.received(frame)
            case Kind.SETUP:
                self._set_up(unpickled(frame.payload))
            case Kind.PHASE:
                self._told = unpickled(frame.payload)
                self._move()
            case Kind.OPEN:
                task = asyncio.get_running_loop().create_task(self._open(unpickled(frame.payload)))
                self._tasks.add(task)
                task.add_done_callback(self._opened)
            case Kind.PAGE:
                if (asked := self._pages.pop(frame.number, None)) and not asked.done():
                    asked.set_result(frame.payload)
            case Kind.STOP:
                self._stop.set()
            case _:
                raise AssertionError(f"a {frame.kind.name} frame is for the other end")

    def _set_up(self, setup: Setup) -> None:
        self._setup = setup
        configure_logs(setup.log_level, redactor_for(setup.server.api_keys))
        if not setup.waits:
            self._accept(setup)

    def _accept(self, setup: Setup) -> None:
        around = surroundings(setup, self._readiness, self._metrics, self._page)
        self._tracer = around.tracer
        self._servers = Servers(setup, self._ports, around)

    async def _open(self, opening: Opening) -> None:
        assert self._setup is not None, "comes first"
        assert self._link is not None, "connected"
        tokenizer = await asyncio.to_thread(TextTokenizer.from_card, opening.card)
        self._dispatcher = RemoteDispatcher(self._link, opening.limits)
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
        self._link.send(Kind.OPENED)

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
        assert self._link is not None, "connected"
        number = next(self._numbers)
        self._pages[number] = asyncio.get_running_loop().create_future()
        self._link.send(Kind.ASK_PAGE, number)
        try:
            return await self._pages[number]
        finally:
            self._pages.pop(number, None)


def _engine_is_gone() -> None:
    """Nothing can be answered any more; the reason is in the log of the process that has ended."""
    os._exit(1)


async def _live(link: int, memory: int, serving: int, pinned: int | None = None) -> None:
    ports = Ports(socket.socket(fileno=serving), None if pinned is None else socket.socket(fileno=pinned))
    await Worker(ports, memory).live(socket.socket(fileno=link))


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    prepare_process()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_live(*map(int, sys.argv[1:5])))
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
