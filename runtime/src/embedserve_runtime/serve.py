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
import gc
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

import uvicorn
import uvloop

from embedserve_runtime.api.app import EMBEDDING_ROUTES, ROUTES, Application, management_app, serving_app
from embedserve_runtime.api.body import Intake
from embedserve_runtime.api.endpoint import Surroundings
from embedserve_runtime.api.errors import CAUSES, STATUSES
from embedserve_runtime.api.keys import ApiKeys
from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.errors import ConfigError, EmbedserveError, UnsupportedArchitecture
from embedserve_runtime.loading import load_runner
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.readiness import Phase, Readiness
from embedserve_runtime.runner import Runner
from embedserve_runtime.scheduling.calibration import Calibration, calibrate, warm_up
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.service import EmbeddingService
from embedserve_runtime.telemetry.logs import configure_logs
from embedserve_runtime.telemetry.metrics import Metrics
from embedserve_runtime.telemetry.termination import write_termination_message
from embedserve_runtime.tokenizing import TextTokenizer

log = logging.getLogger(__name__)

T = TypeVar("T")

CALIBRATION_SECONDS = 10.0
# After the grace period requests are failed as JSON; this is what writing those answers may take.
LAST_ANSWERS_SECONDS = 5.0
# A thread that computes holds the interpreter this long at most when another one wants it. The default of 5
# ms would let the engine wait for the event loop about as long as a small batch takes.
SWITCH_SECONDS = 0.0005
BACKLOG = 2048
# Longer than the idle time of common load balancers, so that they close first and no request meets a closing
# one.
KEEP_ALIVE_SECONDS = 75


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What the loading thread hands over."""

    runner: Runner
    tokenizer: TextTokenizer
    max_batch_tokens: int
    calibration: Calibration | None


def run(config: RuntimeConfig) -> int:
    """Serve until a signal comes; the process's exit code."""
    configure_logs(config.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    code = _run(config)
    if any(thread.daemon for thread in threading.enumerate()):
        # The loader or the engine is still inside a library (the process was stopped while loading, or the grace
        # period was too short for a batch). Finalising the interpreter under native code aborts the process.
        logging.shutdown()
        os._exit(code)
    return code


def _run(config: RuntimeConfig) -> int:
    try:
        with contextlib.ExitStack() as stack:
            server = config.server
            serving = stack.enter_context(contextlib.closing(_bind(server.host, server.port)))
            management = None
            if server.management_port is not None:
                management = stack.enter_context(
                    contextlib.closing(_bind(server.host, server.management_port))
                )
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
                loop.run(_Process(config, serving, management).live())
    except EmbedserveError as error:
        log.error(
            "cannot serve: %s", error.message, extra={"reason": error.reason, "retryable": error.retryable}
        )
        write_termination_message(config.termination_log, error)
        return 1
    return 0


class _Process:
    """One run of the server, from open ports to the last answer."""

    def __init__(
        self, config: RuntimeConfig, serving: socket.socket, management: socket.socket | None
    ) -> None:
        self._config = config
        self._serving = serving
        self._management = management
        self._readiness = Readiness()
        self._metrics = Metrics(ROUTES, STATUSES, EMBEDDING_ROUTES, CAUSES)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def live(self) -> None:
        """Returns after an orderly stop; raises EmbedserveError when the model cannot be served."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, False)
        loop.add_signal_handler(signal.SIGINT, self._on_signal, True)
        settings = self._config.server
        around = Surroundings(
            self._readiness,
            self._metrics,
            Intake(settings.max_body_bytes, settings.max_pending_bytes),
            ApiKeys(settings.api_keys),
        )
        name = settings.served_model_name or self._config.model.source
        async with contextlib.AsyncExitStack() as stack:
            if self._management:
                await stack.enter_async_context(
                    _Server(management_app(around), self._management, LAST_ANSWERS_SECONDS)
                )
            app = serving_app(around, name, with_probes=self._management is None)
            grace = settings.shutdown_grace_seconds + LAST_ANSWERS_SECONDS
            server = await stack.enter_async_context(_Server(app, self._serving, grace))
            log.info(
                "listening, loading the model", extra={"address": _address(self._serving), "model": name}
            )
            service = await self._start_service()
            if service is None:
                return
            log.info(
                "ready on %s",
                _address(self._serving),
                extra={
                    "management": _address(self._management) if self._management else None,
                    "model": name,
                    "vector_space": service.card.vector_space,
                    "max_batch_tokens": service.dispatcher.limits.batch_tokens,
                },
            )
            await self._stop.wait()
            await self._wind_down(service, server)

    async def _start_service(self) -> EmbeddingService | None:
        """None when the process was asked to stop before the model was there."""
        loading = _in_daemon_thread("loader", self._load)
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((asyncio.ensure_future(loading), stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            loading.cancel()
            return None
        loaded = loading.result()
        batching = self._config.batching
        limits = Limits(loaded.max_batch_tokens, batching.max_queue_tokens, batching.max_queue_inputs)
        dispatcher = Dispatcher(loaded.runner, limits, clock=time.perf_counter, observer=self._metrics)
        if loaded.calibration:
            dispatcher.learn_rate(loaded.calibration.tokens_per_second)
        service = EmbeddingService(
            loaded.runner.card, loaded.tokenizer, dispatcher, batching, time.perf_counter
        )
        self._metrics.model_loaded(service.card, loaded.max_batch_tokens, dispatcher)
        self._metrics.ready(True)
        self._readiness.open(service)
        return service

    def _load(self) -> _Loaded:
        """On the loading thread."""
        started = time.perf_counter()
        runner = load_runner(self._config)
        card = runner.card
        _check_served(card)
        tokenizer = TextTokenizer.from_card(card)
        log.info("model loaded", extra={"seconds": round(time.perf_counter() - started, 3)})
        self._readiness.move(Phase.WARMING_UP, "the engine is warming up")
        vocabulary_size = tokenizer.vocabulary_size
        run = partial(runner.run, wanted=card.main_output)
        warm_up(run, max_length=card.max_length, vocabulary_size=vocabulary_size)
        calibration = None
        budget = self._config.batching.max_batch_tokens
        if budget == "auto":
            calibration = calibrate(
                run,
                max_length=card.max_length,
                vocabulary_size=vocabulary_size,
                seconds=CALIBRATION_SECONDS,
                clock=time.perf_counter,
            )
            budget = calibration.budget
            rates = {str(m.budget): round(m.tokens_per_second) for m in calibration.measurements}
            log.info("token budget chosen", extra={"max_batch_tokens": budget, "tokens_per_second": rates})
        # What is alive now stays alive: later collections need not look at it.
        gc.collect()
        gc.freeze()
        return _Loaded(runner, tokenizer, budget, calibration)

    async def _wind_down(self, service: EmbeddingService, server: _Server) -> None:
        settings = self._config.server
        self._readiness.move(Phase.DRAINING, "the process was asked to stop and finishes its work")
        self._metrics.ready(False)
        log.info("stopping", extra={"drain_seconds": settings.endpoint_drain_seconds})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), settings.endpoint_drain_seconds)
        finished = server.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(finished), settings.shutdown_grace_seconds)
        service.dispatcher.close("the process is shutting down")
        await finished
        await asyncio.to_thread(service.dispatcher.join, LAST_ANSWERS_SECONDS)
        service.close()
        log.info("stopped")

    def _on_signal(self, hurry: bool) -> None:
        """A second signal ends the drain, whichever it is."""
        if hurry or self._stop.is_set():
            self._hurry.set()
        self._stop.set()


class _Server(uvicorn.Server):
    """uvicorn on a socket of ours, without its signal handlers, as a context manager.

    grace: seconds that open requests may take once it is stopped.
    """

    def __init__(self, app: Application, sock: socket.socket, grace: float) -> None:
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            loop="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(grace),
        )
        super().__init__(config)
        self._socket = sock
        self._finished: asyncio.Task[None] | None = None

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()

    async def __aenter__(self) -> Self:
        self._finished = asyncio.create_task(self.serve(sockets=[self._socket]))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def stop(self) -> asyncio.Task[None]:
        """Stop accepting; the task ends when all open requests are answered."""
        assert self._finished is not None, "entered"
        self.should_exit = True
        return self._finished


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    sock.setblocking(False)
    return sock


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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


def _check_served(card: ModelCard) -> None:
    """Refuse a model whose inputs are not prepared as it wants them. Raises UnsupportedArchitecture."""
    if card.task is Task.MULTI_VECTOR:
        raise UnsupportedArchitecture(
            f"{card.source} makes a vector for each token (late interaction), whose prefixes, query expansion and "
            "skipped words are not served yet"
        )
