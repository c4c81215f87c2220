"""A whole server in the test's own event loop."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import httpx
from fastapi import FastAPI

from embedserve_runtime.api.app import create_app
from embedserve_runtime.api.clients import ClientIdentifier
from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.api.memory import RequestMemory
from embedserve_runtime.config import BatchingSettings, ServerSettings
from embedserve_runtime.frontends.context import ConnectionMetrics, build_request_series
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.server.http_server import HttpServer
from embedserve_runtime.service import InferenceService
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.service.readiness import Readiness
from embedserve_runtime.telemetry.metrics import Metrics
from embedserve_runtime.telemetry.tracing import RequestTracer
from embedserve_runtime.tokenizing import TextTokenizer
from tests.support.tiny_models import build_card, build_tiny_tokenizer
from tests.support.tiny_runners import Run, TinyRunner, build_mean_run


class InProcessServer:
    """A whole server in the test's own event loop, without sockets."""

    def __init__(
        self,
        app: FastAPI,
        service: InferenceService,
        context: ServerContext,
        dispatcher: Dispatcher,
        metrics: Metrics,
    ) -> None:
        self.app = app
        self.service = service
        self.context = context
        self.dispatcher = dispatcher
        self.metrics = metrics
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    def get_metric(self, name: str, labels: dict[str, str] | None = None) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels or {})


def count_open_requests(dispatcher: Dispatcher) -> int:
    """Return the number of requests that are admitted and not answered yet."""
    return len(dispatcher._admitted)


def build_page(metrics: Metrics) -> Callable[[], Awaitable[bytes]]:
    async def page() -> bytes:
        return metrics.page()

    return page


@asynccontextmanager
async def serve_in_process(
    run: Run | None = None,
    *,
    card: ModelCard | None = None,
    model: Runner | None = None,
    limits: Limits | None = None,
    batching: BatchingSettings | None = None,
    memory: RequestMemory | None = None,
    clients: ClientIdentifier | None = None,
    settings: ServerSettings | None = None,
    ready: bool = True,
    tracer: RequestTracer | None = None,
    clock: Callable[[], float] = perf_counter,
    openai_token_ids: bool = False,
) -> AsyncIterator[InProcessServer]:
    """Build a server around `run` and `card`, or around a real `model`."""
    card = model.card if model else card or build_card()
    metrics = Metrics(build_request_series())
    limits = limits or Limits(256, 100_000, 2_000)
    runner = model or TinyRunner(run or build_mean_run(card.pipeline.full_dimensions))
    dispatcher = Dispatcher(
        [runner],
        limits,
        clock=clock,
        observer=metrics,
    )
    service = InferenceService(
        LoadedModel(card, limits, [runner.engine]),
        TextTokenizer.from_card(card) if model else build_tiny_tokenizer(card.max_length),
        dispatcher,
        batching or BatchingSettings(),
        clock,
    )
    readiness = Readiness()
    if ready:
        metrics.model_loaded(card, limits.batch_tokens, dispatcher, [runner])
        readiness.open(service)
    context = ServerContext(
        readiness,
        "tiny",
        metrics.requests,
        build_page(metrics),
        memory or RequestMemory(2**20, 2**24),
        clients or ClientIdentifier(),
        tracer=tracer,
        takes_openai_token_ids=openai_token_ids,
        logs_requests=settings.access_log if settings else False,
    )
    app = create_app(context, settings or ServerSettings())
    built = InProcessServer(app, service, context, dispatcher, metrics)
    try:
        async with built.client:
            yield built
    finally:
        dispatcher.close("the test is over")
        service.close()


def build_openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of a server without a management port."""
    metrics = Metrics(build_request_series())
    memory = RequestMemory(2**20, 2**24)
    context = ServerContext(Readiness(), "tiny", metrics.requests, build_page(metrics), memory)
    return create_app(context, ServerSettings()).openapi()


@asynccontextmanager
async def listen(server: InProcessServer) -> AsyncIterator[int]:
    """Put a real HTTP server in front of it; yields its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as sock:
        http = HttpServer(server.app, sock, ConnectionMetrics(server.context.metrics))
        try:
            yield sock.getsockname()[1]
        finally:
            await http.abort()
