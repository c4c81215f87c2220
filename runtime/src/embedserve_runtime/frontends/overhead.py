"""Measures what a token costs around the engine: requests of one text each go through a real HTTP server, the real
routes and the real queue, with an engine that does nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from http.client import HTTPConnection

import numpy as np
import uvloop

from embedserve_runtime.api.app import create_app
from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.api.memory import RequestMemory
from embedserve_runtime.config import BatchingSettings, ServerSettings
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import EngineDescription
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.frontends.context import ConnectionMetrics, build_request_series
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.model.pipeline import Pipeline, Pooling
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.server.http_server import HttpServer
from embedserve_runtime.server.sockets import bind
from embedserve_runtime.service import InferenceService
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.service.readiness import Readiness
from embedserve_runtime.telemetry.logs import create_discarding_logger
from embedserve_runtime.telemetry.metrics import Metrics
from embedserve_runtime.tokenizing import TextTokenizer

HOST = "127.0.0.1"
LIMITS = Limits(16_384, 1_000_000, 20_000)
NO_ENGINE = EngineDescription("none", "cpu", "float32")
CONNECTIONS = 16
BODY_BYTES = 2**20
LAST_BATCH_SECONDS = 1.0
# Requests that are not counted: first calls prepare what later ones find.
UNCOUNTED = 16


def measure_overhead(
    card: ModelCard, tokenizer: TextTokenizer, texts: Sequence[str], *, logs_requests: bool = False
) -> float:
    """Return the CPU seconds of one core a token, over these texts, without what the client takes.

    Blocks; not for a thread with an event loop. The first `UNCOUNTED` texts are only for warming up. logs_requests:
    with the cost of an access log.
    """
    seconds: float = uvloop.run(_measure(_replace_outputs_by_dense(card), tokenizer, texts, logs_requests))
    return seconds


async def _measure(
    card: ModelCard, tokenizer: TextTokenizer, texts: Sequence[str], logs_requests: bool
) -> float:
    metrics, readiness, idle = (
        Metrics(build_request_series()),
        Readiness(),
        _Idle(card.pipeline.full_dimensions),
    )
    dispatcher = Dispatcher([idle], LIMITS, clock=time.perf_counter, observer=metrics)
    service = InferenceService(
        LoadedModel(card, LIMITS, [NO_ENGINE]), tokenizer, dispatcher, BatchingSettings(), time.perf_counter
    )
    readiness.open(service)

    async def page() -> bytes:
        return metrics.page()

    memory = RequestMemory(BODY_BYTES, CONNECTIONS * BODY_BYTES)
    context = ServerContext(
        readiness,
        card.source,
        metrics.requests,
        page,
        memory,
        logs_requests=logs_requests,
        access_log=create_discarding_logger(__name__),
    )
    app = create_app(context, ServerSettings())
    (sock,) = bind(HOST, 0)
    server = HttpServer(app, sock, ConnectionMetrics(metrics.requests))
    try:
        await asyncio.to_thread(_send_texts, sock.getsockname()[1], texts[:UNCOUNTED])
        idle.tokens, begun = 0, time.process_time()
        asking = await asyncio.to_thread(_send_texts, sock.getsockname()[1], texts[UNCOUNTED:])
        took = time.process_time() - begun - asking
    finally:
        await server.abort()
        sock.close()
        service.close()
        dispatcher.close("measured")
        await asyncio.to_thread(dispatcher.join, LAST_BATCH_SECONDS)
    return max(took, 0.0) / max(idle.tokens, 1)


class _Idle:
    """Gives any row for every sequence, and counts tokens."""

    def __init__(self, dimensions: int) -> None:
        self.tokens = 0
        self._row = np.linspace(-1, 1, dimensions, dtype=np.float32)[None]

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        self.tokens += batch.tokens
        return ModelOutput(dense=np.repeat(self._row, len(batch.lengths), axis=0))


def _replace_outputs_by_dense(card: ModelCard) -> ModelCard:
    """Return the card of a model with the same encoder size that gives dense vectors, whatever this one gives."""
    if card.main_output is OutputKind.DENSE and card.query is None:
        return card
    size = card.encoder.width
    plain = Pipeline((Pooling.MEAN,), (), normalize=True, dimensions=size, full_dimensions=size)
    return replace(
        card,
        task=Task.EMBED,
        head=None,
        token_heads=(),
        query=None,
        backbone=None,
        pipeline=plain,
        ranges=None,
    )


def _send_texts(port: int, texts: Sequence[str]) -> float:
    """Have all texts embedded, `CONNECTIONS` at once, and return the CPU seconds that the client took."""
    begun = time.thread_time()
    with contextlib.ExitStack() as stack:
        clients = [HTTPConnection(HOST, port) for _ in range(CONNECTIONS)]
        for client in clients:
            stack.enter_context(contextlib.closing(client))
        for start in range(0, len(texts), CONNECTIONS):
            pairs = [*zip(clients, texts[start : start + CONNECTIONS], strict=False)]
            for client, text in pairs:
                body = json.dumps({"inputs": text, "truncate": True})
                client.request("POST", "/embed", body, {"content-type": "application/json"})
            for client, _ in pairs:
                client.getresponse().read()
    return time.thread_time() - begun
