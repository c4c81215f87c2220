"""The life of a serving process.

    bind ports -> serve probes -> load, warm up, calibrate (a thread) -> ready -> SIGTERM -> drain -> finish
    -> exit

The ports are open from the first moment, so probes can say what is going on; requests get 503 until the model
is ready. After SIGTERM the process is not ready at once, but goes on serving until load balancers have moved
away; then it stops accepting and finishes what it has accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

import uvloop

from embedserve_runtime.api.app import create_management_app
from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.cpu.nodes import stay_on_one_node
from embedserve_runtime.cpu.quota import usable_cpus
from embedserve_runtime.engines.results import Output
from embedserve_runtime.errors import EmbedserveError, EngineBroken, NotReady
from embedserve_runtime.frontends.growing import GrowingFrontEnd
from embedserve_runtime.frontends.own import OwnFrontEnd
from embedserve_runtime.frontends.setup import (
    ConnectionMetrics,
    FrontEnd,
    Opening,
    Setup,
    Told,
    prepare_process,
    request_series,
    server_context,
)
from embedserve_runtime.frontends.supervisor import Workers
from embedserve_runtime.runners.base import repeat_by_concurrency
from embedserve_runtime.scheduling.batches import BatchRequest
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.health import EngineMonitor
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.server.http_server import HttpServer
from embedserve_runtime.server.sockets import Ports, address_of, bind, ports_of
from embedserve_runtime.service import EmbeddingService
from embedserve_runtime.service.readiness import Phase, Readiness
from embedserve_runtime.serving.startup import ServableModel, prepare_model
from embedserve_runtime.telemetry.logs import configure_logs
from embedserve_runtime.telemetry.metrics import Metrics
from embedserve_runtime.telemetry.redaction import Redactor, redactor_for
from embedserve_runtime.telemetry.termination import write_termination_message
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules

log = logging.getLogger(__name__)

T = TypeVar("T")

# After the grace period requests are failed as JSON; this is what writing those answers may take.
LAST_ANSWERS_SECONDS = 5.0


def run(config: RuntimeConfig) -> int:
    """Serve until a signal comes; the process's exit code."""
    redactor = redactor_for(config.secrets)
    configure_logs(config.log_level, redactor)
    prepare_process()
    if config.engine.one_node and config.engine.kind != "torch":
        stay_on_one_node(config.engine.threads or usable_cpus())
    code = _run(config, redactor)
    if any(thread.daemon for thread in threading.enumerate()):
        # The loader or the engine is still inside a library (the process was stopped while loading, or the grace
        # period was too short for a batch). Finalising the interpreter under native code aborts the process.
        logging.shutdown()
        os._exit(code)
    return code


def _run(config: RuntimeConfig, redactor: Redactor) -> int:
    try:
        with contextlib.ExitStack() as stack:
            server = config.server
            ports = ports_of(server)
            management = None
            stack.callback(_close_all, ports)
            if server.management_port is not None:
                (management,) = bind(server.host, server.management_port)
                stack.enter_context(contextlib.closing(management))
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
                loop.run(_Process(config, ports, management).live())
    except EmbedserveError as error:
        log.error(
            "cannot serve: %s", error.message, extra={"reason": error.reason, "retryable": error.retryable}
        )
        write_termination_message(config.termination_log, error, redactor)
        return error.exit_code
    return 0


class _Process:
    """One run of the server, from open ports to the last answer."""

    def __init__(self, config: RuntimeConfig, ports: list[Ports], management: socket.socket | None) -> None:
        self._config = config
        self._ports = ports
        self._management = management
        self._readiness = Readiness()
        self._metrics = Metrics(request_series())
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._broken: str | None = None
        self._growing: GrowingFrontEnd | None = None
        server = config.server
        self._setup = Setup(
            server,
            config.batching,
            config.telemetry,
            config.log_level,
            server.served_model_name or config.model.source,
            with_probes=management is None,
            waits=False,
        )

    async def live(self) -> None:
        """Returns after an orderly stop; raises EmbedserveError when the model cannot be served."""
        self._loop = loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, False)
        loop.add_signal_handler(signal.SIGINT, self._on_signal, True)
        context = server_context(self._setup, self._readiness, self._metrics.requests, self._page)
        management = self._manage(context)
        self._front = self._open_front(context)
        serving = asyncio.create_task(self._serve())
        failing = asyncio.create_task(self._front.failed())
        try:
            await asyncio.wait((serving, failing), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            else:
                failing.result()
        finally:
            for task in (serving, failing):
                task.cancel()
            await asyncio.wait((serving, failing))
            await self._front.close()
            if management:
                await management.abort()
            if context.tracer:
                await asyncio.to_thread(context.tracer.flush)

    def _manage(self, context: ServerContext) -> HttpServer | None:
        if not self._management:
            return None
        app = create_management_app(context, self._set_current)
        return HttpServer(app, self._management, ConnectionMetrics(self._metrics.requests))

    def _open_front(self, context: ServerContext) -> FrontEnd:
        server = self._setup.server
        if server.grpc_port is None:
            return self._open_http(context)
        # Imported here, since the library takes time and memory that a server without gRPC need not spend.
        from embedserve_runtime.rpc.front_end import RpcFrontEnd
        from embedserve_runtime.rpc.server import RpcPorts, RpcServer

        ports = RpcPorts(server.host, server.grpc_port, server.pinned_grpc_port, server.space_grpc)
        return RpcFrontEnd(RpcServer(context, ports), self._open_http(context))

    def _open_http(self, context: ServerContext) -> FrontEnd:
        workers = self._setup.server.http_workers
        if workers == "auto":
            self._growing = GrowingFrontEnd(self._setup, self._ports, context, self._metrics)
            return self._growing
        if workers == 1:
            return OwnFrontEnd(self._setup, self._ports[0], context, self._metrics)
        return Workers(self._setup, self._ports, self._metrics)

    async def _serve(self) -> None:
        name = self._setup.model_name
        log.info(
            "listening, loading the model",
            extra={"address": address_of(self._ports[0].serving), "model": name},
        )
        dispatcher = await self._start_dispatcher()
        if dispatcher is None:
            return
        self._move(Phase.READY, "serving")
        self._metrics.set_ready(True)
        log.info(
            "ready on %s",
            address_of(self._ports[0].serving),
            extra={
                "pinned": address_of(self._ports[0].pinned) if self._ports[0].pinned else None,
                "management": address_of(self._management) if self._management else None,
                "model": name,
                "vector_space": self._vector_space,
                "max_batch_tokens": dispatcher.limits.batch_tokens,
            },
        )
        await self._stop.wait()
        if self._broken is not None:
            await self._end_broken(dispatcher, self._broken)
        await self._wind_down(dispatcher)

    async def _start_dispatcher(self) -> Dispatcher | None:
        """Start the dispatcher and open the front end on it; None when the process was asked to stop before the model
        was there."""
        loading = _in_daemon_thread("loader", self._load)
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((asyncio.ensure_future(loading), stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            loading.cancel()
            return None
        loaded = loading.result()
        if self._growing:
            await self._growing.grow(loaded.http_workers)
        batching, runners = self._config.batching, loaded.runners
        card, engines = runners[0].card, [runner.engine for runner in runners]
        limits = Limits(loaded.max_batch_tokens, batching.max_queue_tokens, batching.max_queue_inputs)
        concurrent_runners = repeat_by_concurrency(runners)
        dispatcher = Dispatcher(
            concurrent_runners, limits, clock=time.perf_counter, observer=self._front.observer
        )
        if loaded.calibration:
            dispatcher.learn_rate(
                loaded.calibration.tokens_per_second * len(runners) / len(concurrent_runners)
            )
        dispatcher.on_batch_failed = self._monitor(dispatcher, loaded, card.main_output).batch_failed
        self._vector_space = card.vector_space
        self._metrics.model_loaded(card, loaded.max_batch_tokens, dispatcher, runners)
        opening = Opening(card, limits, engines)
        await self._front.open(opening, loaded.tokenizer, dispatcher)
        self._open_service(opening, loaded.tokenizer, dispatcher)
        return dispatcher

    def _monitor(self, dispatcher: Dispatcher, loaded: ServableModel, wanted: Output) -> EngineMonitor:
        probe = BatchRequest(loaded.tokenizer.encode(["probe"], "", TruncationRules(truncate=True)), wanted)
        return EngineMonitor(dispatcher, probe, time.perf_counter, self._engine_is_broken)

    def _engine_is_broken(self, cause: str) -> None:
        """No later batch survives: say so to who asks, and end the process, so that its container is started anew."""
        self._broken = f"the engine runs nothing any more, not even what it ran at the start: {cause}"
        self._move(Phase.BROKEN, self._broken)
        self._metrics.set_ready(False)
        self._stop.set()

    async def _end_broken(self, dispatcher: Dispatcher, message: str) -> NoReturn:
        """Answer what waits, with an error. Raises EngineBroken."""
        dispatcher.close(message)
        self._front.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._front.finished(), LAST_ANSWERS_SECONDS)
        raise EngineBroken(f"{message}; the process ends, for a new one to be started")

    def _open_service(self, opening: Opening, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        """Open the service for what this process answers beside HTTP's front ends: self-checks, and gRPC where it is
        on."""
        try:
            self._readiness.service()
        except NotReady:  # the front ends are processes of their own, which have services of their own
            service = EmbeddingService(
                opening.card,
                tokenizer,
                dispatcher,
                self._setup.batching,
                time.perf_counter,
                engines=opening.engines,
            )
            self._readiness.open(service)

    def _load(self) -> ServableModel:
        """On the loading thread."""
        return prepare_model(
            self._config,
            lambda: self._loop.call_soon_threadsafe(self._move, Phase.WARMING_UP, "the engine is warming up"),
        )

    async def _wind_down(self, dispatcher: Dispatcher) -> None:
        settings = self._config.server
        self._move(Phase.DRAINING, "the process was asked to stop and finishes its work")
        self._metrics.set_ready(False)
        log.info("stopping", extra={"drain_seconds": settings.endpoint_drain_seconds})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), settings.endpoint_drain_seconds)
        self._front.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._front.finished(), settings.shutdown_grace_seconds)
        dispatcher.close("the process is shutting down")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._front.finished(), LAST_ANSWERS_SECONDS)
        await asyncio.to_thread(dispatcher.join, LAST_ANSWERS_SECONDS)
        log.info("stopped")

    def _move(self, phase: Phase, message: str) -> None:
        self._readiness.move(phase, message)
        self._tell()

    def _set_current(self, space: str) -> None:
        if space != self._readiness.current_space:
            self._readiness.current_space = space
            log.info("the service's name stands for another vector space", extra={"vector_space": space})
            self._tell()

    def _tell(self) -> None:
        readiness = self._readiness
        self._front.tell(Told(readiness.phase, readiness.message, readiness.current_space))

    async def _page(self) -> bytes:
        return self._metrics.page()

    def _on_signal(self, hurry: bool) -> None:
        """A second signal ends the drain, whichever it is."""
        if hurry or self._stop.is_set():
            self._hurry.set()
        self._stop.set()


def _close_all(ports: list[Ports]) -> None:
    """Those too that have come to the list since."""
    for sock in filter(None, itertools.chain.from_iterable(ports)):
        sock.close()


def _in_daemon_thread(name: str, function: Callable[[], T]) -> asyncio.Future[T]:
    """Run a blocking function in a thread that the process does not wait for when it ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(setter: Callable[[], None]) -> None:
        if not future.done():
            setter()

    def work() -> None:
        try:
            result = function()
        except EmbedserveError as error:
            failure: EmbedserveError = error
        except Exception as error:  # outermost place of this thread: anything else is a bug, told as such
            log.exception("unexpected error while loading the model")
            failure = EmbedserveError(
                f"unexpected error while loading the model: {type(error).__name__}: {error}"
            )
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed already: the process stops
                loop.call_soon_threadsafe(settle, lambda: future.set_result(result))
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, lambda: future.set_exception(failure))

    threading.Thread(target=work, name=name, daemon=True).start()
    return future
