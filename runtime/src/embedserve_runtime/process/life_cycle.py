"""Runs a server from its open ports to its last answer.

    ports are bound -> serve probes -> load, warm up (a thread) -> ready -> huge pages, calibrate (a thread)
    -> SIGTERM -> drain -> finish -> exit

The ports are open from the beginning, so that probes can report the phase; requests get 503 until the model is ready.
After SIGTERM or SIGHUP the process reports that it is not ready, but keeps serving until load balancers have moved
away; then it accepts no more requests and finishes those that it has accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

from embedserve_runtime.api.app import create_management_app
from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.api.operator_calls import OperatorCalls
from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.cpu.huge_pages import use_huge_pages
from embedserve_runtime.errors import EmbedserveError, EngineBroken, NotReady
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.frontends.auto_sized import AutoSizedFrontEnd
from embedserve_runtime.frontends.context import ConnectionMetrics, build_request_series, build_server_context
from embedserve_runtime.frontends.front_end import FrontEnd, FrontEndSettings, ServerStatus
from embedserve_runtime.frontends.heap import trim_heap_periodically
from embedserve_runtime.frontends.in_process import InProcessFrontEnd
from embedserve_runtime.frontends.supervisor import WorkerSupervisor
from embedserve_runtime.process.budget import BudgetMeasurement, log_budget, measure_when_idle
from embedserve_runtime.process.exit_codes import EXIT_CODES_BEFORE_READINESS
from embedserve_runtime.process.idle_memory import release_memory_when_idle
from embedserve_runtime.process.loader import ModelLoader
from embedserve_runtime.process.startup import ServableModel
from embedserve_runtime.runners.base import repeat_by_concurrency
from embedserve_runtime.scheduling.batches import BatchRequest
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.health import EngineMonitor
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.server.http_server import HttpServer
from embedserve_runtime.server.sockets import Ports, format_address
from embedserve_runtime.service import InferenceService
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.service.readiness import Phase, Readiness
from embedserve_runtime.telemetry.metrics import Metrics
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules

log = logging.getLogger(__name__)


# After the grace period requests get errors; writing those may take this long.
LAST_ANSWERS_SECONDS = 5.0


class ServerProcess:
    """One run of a server, from open ports to the last answer. loader: of its model, which has been started."""

    def __init__(
        self,
        config: RuntimeConfig,
        ports: list[Ports],
        management: socket.socket | None,
        loader: ModelLoader,
    ) -> None:
        self._config = config
        self._loader = loader
        self._ports = ports
        self._management = management
        self._readiness = Readiness()
        self._metrics = Metrics(build_request_series())
        self._stop = asyncio.Event()
        self._drain_ended = asyncio.Event()
        self._exit_code = 0
        self._broken: str | None = None
        self._dispatcher: Dispatcher | None = None
        self._auto_sized_front_end: AutoSizedFrontEnd | None = None
        server = config.server
        self._settings = FrontEndSettings(
            server,
            config.batching,
            config.telemetry,
            config.log_level,
            config.log_format,
            server.served_model_name or config.model.source_name,
            serves_probes=management is None,
            waits_for_model=False,
        )

    async def run(self) -> int:
        """Serve until a stop; return the exit code. Raises EmbedserveError when the model cannot be served."""
        loop = asyncio.get_running_loop()
        for number in EXIT_CODES_BEFORE_READINESS:
            loop.add_signal_handler(number, self._handle_signal, number)
        self._context = context = build_server_context(
            self._settings, self._readiness, self._metrics.requests, self._render_metrics
        )
        management = self._open_management(context)
        self._front_end = self._open_front_end(context)
        serving = asyncio.create_task(self._serve())
        failing = asyncio.create_task(self._front_end.wait_for_failure())
        trimming = asyncio.create_task(trim_heap_periodically())
        try:
            await asyncio.wait((serving, failing), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            else:
                failing.result()
        finally:
            tasks = (serving, failing, trimming)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._front_end.close()
            if management:
                await management.abort()
            if context.tracer:
                await asyncio.to_thread(context.tracer.flush)
        return self._exit_code

    def _open_management(self, context: ServerContext) -> HttpServer | None:
        if not self._management:
            return None
        # Kubernetes gives a pod its own name as that of the host.
        calls = OperatorCalls(self._config.server.operator_keys_file, socket.gethostname())
        app = create_management_app(context, self._set_current_space, calls)
        return HttpServer(app, self._management, ConnectionMetrics(self._metrics.requests))

    def _open_front_end(self, context: ServerContext) -> FrontEnd:
        server = self._settings.server
        if server.grpc_port is None:
            return self._open_http_front_end(context)
        # Imported here, since the library takes time and memory that a server without gRPC does not need.
        from embedserve_runtime.rpc.front_end import RpcFrontEnd
        from embedserve_runtime.rpc.server import RpcPorts, RpcServer

        ports = RpcPorts(server.host, server.grpc_port, server.pinned_grpc_port, server.space_grpc)
        return RpcFrontEnd(RpcServer(context, ports), self._open_http_front_end(context))

    def _open_http_front_end(self, context: ServerContext) -> FrontEnd:
        workers = self._settings.server.http_workers
        if workers == "auto":
            self._auto_sized_front_end = AutoSizedFrontEnd(
                self._settings, self._ports, context, self._metrics
            )
            return self._auto_sized_front_end
        if workers == 1:
            return InProcessFrontEnd(self._settings, self._ports[0], context, self._metrics)
        return WorkerSupervisor(self._settings, self._ports, self._metrics)

    async def _serve(self) -> None:
        dispatcher = await self._start_dispatcher()
        if dispatcher is None:
            log.info("stopped while the model is loaded")
            return
        self._set_phase(Phase.READY, "serving")
        self._metrics.set_ready(True)
        log.info(
            "ready on %s",
            format_address(self._ports[0].service),
            extra={
                "pinned": format_address(self._ports[0].space) if self._ports[0].space else None,
                "management": format_address(self._management) if self._management else None,
                "model": self._settings.model_name,
                "vector_space": self._vector_space,
                "max_batch_tokens": dispatcher.limits.batch_tokens,
            },
        )
        async with self._tune_meanwhile(dispatcher):
            await self._stop.wait()
        if self._broken is not None:
            await self._stop_broken(dispatcher, self._broken)
        await self._drain(dispatcher)

    async def _start_dispatcher(self) -> Dispatcher | None:
        """Start the dispatcher and open the front end on it; None when the process was stopped before the model was
        loaded."""
        in_memory = asyncio.wrap_future(self._loader.loaded)
        in_memory.add_done_callback(lambda _: self._set_phase(Phase.WARMING_UP, "the engine is warming up"))
        loading = asyncio.wrap_future(self._loader.prepared)
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            loading.cancel()
            return None
        loaded = loading.result()
        if self._auto_sized_front_end:
            await self._auto_sized_front_end.grow(loaded.http_workers)
        batching, runners, fit = self._config.batching, loaded.runners, loaded.fit
        card, engines = runners[0].card, [runner.engine for runner in runners]
        limits = Limits(loaded.max_batch_tokens, batching.max_queue_tokens, fit.load.queue_inputs)
        concurrent_runners = repeat_by_concurrency(runners, fit.max_concurrency)
        if fit.limit is not None:
            # Front ends in other processes keep within their share of the setting.
            self._context.memory.lower_bound(fit.load.pending_bytes)
        self._dispatcher = dispatcher = Dispatcher(
            concurrent_runners,
            limits,
            clock=time.perf_counter,
            observer=self._front_end.observer,
            express_runner=runners[0] if runners[0].engine.can_overcommit else None,
        )
        if loaded.calibration:
            dispatcher.learn_rate(
                loaded.calibration.tokens_per_second * len(runners) / len(concurrent_runners)
            )
        dispatcher.on_batch_failed = self._create_engine_monitor(
            dispatcher, loaded, card.main_output
        ).batch_failed
        self._vector_space = card.vector_space
        self._runs_on_cpu = engines[0].device == "cpu"
        self._budget_measurement = loaded.measurement
        self._metrics.model_loaded(card, loaded.max_batch_tokens, dispatcher, runners)
        self._metrics.memory_planned(fit.limit, fit.planned)
        model = LoadedModel(card, limits, engines, fit)
        await self._front_end.open(model, loaded.tokenizer, dispatcher)
        self._open_service(model, loaded.tokenizer, dispatcher)
        return dispatcher

    @contextlib.asynccontextmanager
    async def _tune_meanwhile(self, dispatcher: Dispatcher) -> AsyncIterator[None]:
        """Do what makes the server faster and is no condition of its first answer, for as long as the context lasts at
        most."""
        ended = threading.Event()
        tuning = asyncio.create_task(self._tune(dispatcher, ended.is_set))
        try:
            yield
        finally:
            ended.set()
            tuning.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await tuning

    async def _tune(self, dispatcher: Dispatcher, is_stopping: Callable[[], bool]) -> None:
        if not self._runs_on_cpu:
            return
        # Beside the first requests, which are slower for as long as it takes: a second for some GB.
        await asyncio.to_thread(use_huge_pages, is_stopping)
        if self._budget_measurement is not None:
            await self._improve_budget(self._budget_measurement, dispatcher, is_stopping)
        await release_memory_when_idle(dispatcher, self._probe)

    async def _improve_budget(
        self, measurement: BudgetMeasurement, dispatcher: Dispatcher, is_stopping: Callable[[], bool]
    ) -> None:
        try:
            calibration = await measure_when_idle(measurement, dispatcher, is_stopping)
        except EmbedserveError as error:
            log.warning("the token budget could not be measured: %s", error.message)
            return
        if calibration is not None:
            log_budget(calibration)
            dispatcher.change_batch_tokens(calibration.budget)
            self._metrics.change_budget(calibration.budget)
            self._publish_status()

    def _create_engine_monitor(
        self, dispatcher: Dispatcher, loaded: ServableModel, outputs: OutputKind
    ) -> EngineMonitor:
        sequences = loaded.tokenizer.encode(["probe"], "", TruncationRules(truncate=True))
        self._probe = BatchRequest(sequences, outputs)
        return EngineMonitor(dispatcher, self._probe, time.perf_counter, self._engine_is_broken)

    def _engine_is_broken(self, cause: str) -> None:
        """Report that no batch succeeds any more, and end the process, so that its container is restarted."""
        self._broken = f"the engine runs nothing any more, not even what it ran at the start: {cause}"
        self._set_phase(Phase.BROKEN, self._broken)
        self._metrics.set_ready(False)
        self._stop.set()

    async def _stop_broken(self, dispatcher: Dispatcher, message: str) -> NoReturn:
        """Answer pending requests with an error. Raises EngineBroken."""
        dispatcher.close(message)
        self._front_end.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._front_end.wait_finished(), LAST_ANSWERS_SECONDS)
        raise EngineBroken(f"{message}; the process ends, for a new one to be started")

    def _open_service(self, model: LoadedModel, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        """Open the service for what this process answers besides HTTP's front ends: self-checks, and gRPC if it is
        on."""
        try:
            self._readiness.service()
        except NotReady:  # the front ends are other processes, which have their own services
            service = InferenceService(
                model,
                tokenizer,
                dispatcher,
                self._settings.batching,
                time.perf_counter,
            )
            self._readiness.open(service)

    async def _drain(self, dispatcher: Dispatcher) -> None:
        settings = self._config.server
        self._set_phase(Phase.DRAINING, "the process was asked to stop and finishes its work")
        self._metrics.set_ready(False)
        log.info("stopping", extra={"drain_seconds": settings.endpoint_drain_seconds})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drain_ended.wait(), settings.endpoint_drain_seconds)
        self._front_end.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._front_end.wait_finished(), settings.shutdown_grace_seconds)
        dispatcher.close("the process is shutting down")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._front_end.wait_finished(), LAST_ANSWERS_SECONDS)
        await asyncio.to_thread(dispatcher.join, LAST_ANSWERS_SECONDS)
        log.info("stopped")

    def _set_phase(self, phase: Phase, message: str) -> None:
        self._readiness.move(phase, message)
        self._publish_status()

    def _set_current_space(self, space: str) -> None:
        if space != self._readiness.current_space:
            self._readiness.current_space = space
            log.info("the service's name stands for another vector space", extra={"vector_space": space})
            self._publish_status()

    def _publish_status(self) -> None:
        readiness = self._readiness
        budget = None if self._dispatcher is None else self._dispatcher.limits.batch_tokens
        self._front_end.set_status(
            ServerStatus(readiness.phase, readiness.message, readiness.current_space, budget)
        )

    async def _render_metrics(self) -> bytes:
        return self._metrics.page()

    def _handle_signal(self, number: signal.Signals) -> None:
        """Stop the process. SIGINT skips the drain, and so does any second signal."""
        if number == signal.SIGINT or self._stop.is_set():
            self._drain_ended.set()
        if not self._stop.is_set() and not self._readiness.is_ready:
            self._exit_code = EXIT_CODES_BEFORE_READINESS[number]
        self._stop.set()
