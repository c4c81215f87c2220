"""Runs a front-end process: `python -m embedserve_runtime.frontends.worker ADDRESS IDENTITY MEMORY SERVICE [SPACE]`.

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

from embedserve_runtime.frontends.context import build_request_series, build_server_context
from embedserve_runtime.frontends.front_end import FrontEndSettings, ServerStatus
from embedserve_runtime.frontends.front_end_channel import FrontEndChannel
from embedserve_runtime.frontends.heap import trim_heap_periodically
from embedserve_runtime.frontends.interpreter import tune_interpreter
from embedserve_runtime.frontends.messages import (
    HEARTBEAT_SECONDS,
    Configure,
    EngineMessage,
    Heartbeat,
    MetricsPageRequest,
    MetricsPageResponse,
    ModelOpened,
    QueueDepthChanged,
    Ready,
    RequestCompleted,
    RequestFailed,
    StatusChanged,
    Stop,
)
from embedserve_runtime.frontends.pickling import from_pickle
from embedserve_runtime.frontends.remote_dispatcher import RemoteDispatcher
from embedserve_runtime.frontends.servers import HttpServers
from embedserve_runtime.server.sockets import Ports
from embedserve_runtime.service import InferenceService
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.service.readiness import Phase, Readiness
from embedserve_runtime.telemetry.logs import configure_logs
from embedserve_runtime.telemetry.redaction import build_redactor
from embedserve_runtime.telemetry.requests import RequestMetrics
from embedserve_runtime.telemetry.series import view_row
from embedserve_runtime.tokenizing import TextTokenizer

if TYPE_CHECKING:
    from embedserve_runtime.telemetry.tracing import RequestTracer

log = logging.getLogger(__name__)


class Worker:
    def __init__(self, ports: Ports, memory: int) -> None:
        self._ports = ports
        series = build_request_series()
        self._metrics = RequestMetrics(series, view_row(memoryview(mmap.mmap(memory, 0))))
        self._readiness = Readiness()
        self._status = ServerStatus(self._readiness.phase, self._readiness.message)
        self._pages: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = itertools.count(1)
        self._settings: FrontEndSettings | None = None
        self._servers: HttpServers | None = None
        self._dispatcher: RemoteDispatcher | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._channel: FrontEndChannel | None = None
        self._tracer: RequestTracer | None = None

    async def run(self, address: str, identity: bytes) -> None:
        """Serve until a stop is asked for, and return when all is answered."""
        self._channel = FrontEndChannel(address, identity, self._handle, _exit)
        periodic = (
            asyncio.create_task(self._send_heartbeats(self._channel)),
            asyncio.create_task(trim_heap_periodically()),
        )
        await self._stop.wait()
        if self._servers:
            self._servers.stop()
            await self._servers.wait_finished()
        if self._tracer:
            await asyncio.to_thread(self._tracer.flush)
        for task in periodic:
            task.cancel()

    async def _send_heartbeats(self, channel: FrontEndChannel) -> None:
        while True:
            channel.send(Heartbeat())
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _handle(self, message: EngineMessage) -> None:
        match message:
            case RequestCompleted() | RequestFailed() | QueueDepthChanged():
                if self._dispatcher:
                    self._dispatcher.receive(message)
            case Configure():
                self._set_up(from_pickle(message.settings))
            case StatusChanged():
                self._status = from_pickle(message.status)
                self._update_readiness()
            case ModelOpened():
                task = asyncio.get_running_loop().create_task(self._open_service(from_pickle(message.model)))
                self._tasks.add(task)
                task.add_done_callback(self._exit_on_failure)
            case MetricsPageResponse():
                if (page := self._pages.pop(message.request_id, None)) and not page.done():
                    page.set_result(message.page)
            case Stop():
                self._stop.set()

    def _set_up(self, settings: FrontEndSettings) -> None:
        self._settings = settings
        configure_logs(settings.log_level, build_redactor(settings.server.api_keys), settings.log_format)
        if not settings.waits_for_model:
            self._accept(settings)

    def _accept(self, settings: FrontEndSettings) -> None:
        context = build_server_context(settings, self._readiness, self._metrics, self._fetch_metrics_page)
        self._tracer = context.tracer
        self._servers = HttpServers(settings.server, self._ports, context)

    async def _open_service(self, model: LoadedModel) -> None:
        assert self._settings is not None, "comes first"
        assert self._channel is not None, "connected"
        tokenizer = await asyncio.to_thread(TextTokenizer.from_card, model.card)
        self._dispatcher = RemoteDispatcher(self._channel, model.limits)
        service = InferenceService(
            model,
            tokenizer,
            self._dispatcher,
            self._settings.batching,
            time.perf_counter,
        )
        # What is alive now stays alive: later collections need not look at it.
        gc.collect()
        gc.freeze()
        self._readiness.open(service)
        self._update_readiness()
        if self._servers is None and not self._stop.is_set():
            self._accept(self._settings)
        self._channel.send(Ready())

    def _exit_on_failure(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("cannot serve in a front-end process", exc_info=error)
            os._exit(1)

    def _update_readiness(self) -> None:
        """Take over the server's phase, except for ready, which needs a service, and its token budget."""
        if self._dispatcher and self._status.max_batch_tokens is not None:
            self._dispatcher.change_batch_tokens(self._status.max_batch_tokens)
        self._readiness.current_space = self._status.current_space
        if self._dispatcher or self._status.phase in {Phase.LOADING, Phase.WARMING_UP}:
            self._readiness.move(self._status.phase, self._status.message)

    async def _fetch_metrics_page(self) -> bytes:
        assert self._channel is not None, "connected"
        number = next(self._numbers)
        self._pages[number] = asyncio.get_running_loop().create_future()
        self._channel.send(MetricsPageRequest(number))
        try:
            return await self._pages[number]
        finally:
            self._pages.pop(number, None)


def _exit() -> None:
    """End the process at once: it cannot answer any more, and the log has the reason."""
    os._exit(1)


def _exit_when_closed(handle: int) -> None:
    """End at once when the other end of a pipe is closed, as the kernel does when its process ends for any reason."""

    def read() -> None:
        if not os.read(handle, 1):
            _exit()

    asyncio.get_running_loop().add_reader(handle, read)


async def _run(address: str, identity: str, memory: int, service: int, space: int | None = None) -> None:
    _exit_when_closed(sys.stdin.fileno())
    ports = Ports(socket.socket(fileno=service), None if space is None else socket.socket(fileno=space))
    await Worker(ports, memory).run(address, identity.encode())


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tune_interpreter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        address, identity, *handles = sys.argv[1:]
        runner.run(_run(address, identity, *map(int, handles)))
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
