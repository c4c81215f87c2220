"""Builders for tests of the serving side: a small real tokenizer, a card, and an engine that embeds by token ids."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from embedserve_runtime.api.api_keys import ApiKeys
from embedserve_runtime.api.app import create_app
from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.api.memory import RequestMemory
from embedserve_runtime.config import BatchingSettings, ServerSettings
from embedserve_runtime.engines.base import EngineFacts, FloatArray, PackedBatch
from embedserve_runtime.engines.results import Output, Results
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.frontends.context import ConnectionMetrics, build_request_series
from embedserve_runtime.heads.sparse import to_sparse_vector
from embedserve_runtime.model.architecture import Embeddings, Encoder, ParameterNames
from embedserve_runtime.model.card import ModelCard, TokenizerSettings
from embedserve_runtime.model.heads.description import (
    ClassifierHead,
    Head,
    HeadLayer,
    ScoreFunction,
    SparseHead,
    SparsePooling,
    Task,
)
from embedserve_runtime.model.pipeline import Pipeline, Pooling
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.server.http_server import HttpServer
from embedserve_runtime.service import EmbeddingService
from embedserve_runtime.service.readiness import Readiness
from embedserve_runtime.telemetry.metrics import Metrics
from embedserve_runtime.telemetry.tracing import RequestTracer
from embedserve_runtime.tokenizing import TextTokenizer

WORDS = (
    "hello",
    "world",
    "a",
    "vector",
    "is",
    "list",
    "of",
    "numbers",
    "query",
    "passage",
    "deep",
    "learning",
)
VOCABULARY = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    ":",
    ".",
    ",",
    "?",
    "##s",
    *WORDS,
    *"bcdefghijklmnopqrstuvwxyz",
)
CLS, SEP = 2, 3
SPACE = "vs2-0123456789abcdef0123"
DIMENSIONS = 8

Run = Callable[[PackedBatch], FloatArray]


def tiny_wordpiece() -> Tokenizer:
    """BERT's pipeline with a vocabulary of a few words."""
    tokenizer = Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    return tokenizer


def settings_of(tokenizer: Tokenizer, *, lowercase: bool = False) -> TokenizerSettings:
    max_token_id = max(tokenizer.get_vocab().values())
    return TokenizerSettings(tokenizer.to_str().encode(), "unused", max_token_id, lowercase)


def tiny_tokenizer(max_length: int = 32) -> TextTokenizer:
    return TextTokenizer(tiny_wordpiece(), max_length, len(VOCABULARY))


def card_of(
    *,
    dimensions: int = DIMENSIONS,
    full_dimensions: int | None = None,
    max_length: int = 32,
    normalize: bool = True,
    prompts: Mapping[str, str] | None = None,
    default_prompt: str | None = None,
    task: Task = Task.EMBED,
    head: Head | None = None,
) -> ModelCard:
    encoder = Encoder(
        family="bert",
        hidden_size=dimensions,
        max_tokens=max_length,
        embeddings=Embeddings(vocabulary=len(VOCABULARY), positions=None, token_types=0, norm=None),
        layers=(),
        final_norm=None,
        parameter_names=ParameterNames((), {}),
    )
    return ModelCard(
        source="tiny",
        revision="local",
        encoder=encoder,
        pipeline=Pipeline((Pooling.MEAN,), (), normalize, dimensions, full_dimensions or dimensions),
        max_length=max_length,
        own_max_length=max_length,
        tokenizer=settings_of(tiny_wordpiece()),
        prompts=prompts or {},
        default_prompt=default_prompt,
        vector_space=SPACE,
        task=task,
        head=head,
    )


def classifier_of(*labels: str, scores: ScoreFunction = ScoreFunction.SOFTMAX) -> ModelCard:
    """A card of a classifier, or with one label of a reranker, whose rows are as wide."""
    layer = HeadLayer(DIMENSIONS, len(labels), ("unused",), ())
    task = Task.RERANK if len(labels) == 1 else Task.CLASSIFY
    return card_of(
        dimensions=len(labels), task=task, head=ClassifierHead(Pooling.CLS, (layer,), labels, scores)
    )


def splade_card() -> ModelCard:
    """A card of a model that makes sparse vectors over the whole vocabulary."""
    layer = HeadLayer(DIMENSIONS, len(VOCABULARY), ("unused",), ())
    return card_of(dimensions=len(VOCABULARY), task=Task.SPARSE, head=SparseHead((layer,), SparsePooling.MAX))


def card_with(tokenizer: Tokenizer, *, lowercase: bool) -> ModelCard:
    return replace(card_of(), tokenizer=settings_of(tokenizer, lowercase=lowercase))


def mean_of_ids(dimensions: int = DIMENSIONS) -> Run:
    """An engine whose row is the mean of fixed random rows, one a token id: any mix-up of inputs shows."""
    table = np.random.default_rng(7).standard_normal((len(VOCABULARY), dimensions), dtype=np.float32)

    def run(batch: PackedBatch) -> FloatArray:
        sums: FloatArray = np.add.reduceat(table[batch.token_ids], batch.cu_seqlens[:-1], axis=0)
        return np.asarray(sums / batch.lengths[:, None], dtype=np.float32)

    return run


TINY = EngineFacts("tiny", "a test", "float32")


@dataclass(frozen=True)
class TinyRunner:
    """A runner around what makes rows: dense vectors, logits, or sparse vectors of what is above 0 in them.

    Its hidden state of a token is what the token alone would give.
    """

    rows: Run
    card: ModelCard = field(default_factory=card_of)
    engine: EngineFacts = TINY
    out_of_memory: int = 0
    recomputed: int = 0

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        alone = PackedBatch(batch.token_ids, np.arange(batch.tokens + 1, dtype=np.int32))
        rows = self.rows(batch)
        return Results(
            dense=rows if Output.DENSE in wanted else None,
            logits=rows if Output.LOGITS in wanted else None,
            sparse=[*map(to_sparse_vector, rows)] if Output.SPARSE in wanted else None,
            hidden=np.split(self.rows(alone), batch.cu_seqlens[1:-1]) if Output.HIDDEN in wanted else None,
        )


@dataclass(frozen=True)
class _Under:
    runner: TinyRunner
    batch: PackedBatch
    wanted: Output

    def results(self) -> Results:
        return self.runner.run(self.batch, self.wanted)


@dataclass(frozen=True)
class OverlappingRunner(TinyRunner):
    """An engine that takes batches before the results of earlier ones are read; `rows` is where it works.

    taken: a permit for each batch that has been submitted. refused: a token id that fails the submission.
    """

    taken: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    max_in_flight: int = 2
    refused: int | None = None

    def submit(self, batch: PackedBatch, wanted: Output) -> _Under:
        if self.refused is not None and self.refused in batch.token_ids:
            raise EngineFailure("cannot take this")
        self.taken.release()
        return _Under(self, batch, wanted)

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        if self.refused is not None and self.refused in batch.token_ids:
            raise EngineFailure("cannot take this")
        return super().run(batch, wanted)


class GatedRun:
    """Lets a test hold the engine inside a batch, and keeps the batches that have come in."""

    def __init__(self, run: Run | None = None) -> None:
        self._run = run or mean_of_ids()
        self._open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.batches: list[PackedBatch] = []

    def __call__(self, batch: PackedBatch) -> FloatArray:
        self.batches.append(batch)
        self.entered.release()
        self._open.wait()
        return self._run(batch)

    def release(self) -> None:
        """From now on nothing is held."""
        self._open.set()


class Bench:
    """A whole server in the test's own event loop, without sockets."""

    def __init__(
        self,
        app: FastAPI,
        service: EmbeddingService,
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

    def metric(self, name: str, labels: dict[str, str] | None = None) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels or {})


def page_of(metrics: Metrics) -> Callable[[], Awaitable[bytes]]:
    async def page() -> bytes:
        return metrics.page()

    return page


@asynccontextmanager
async def bench(
    run: Run | None = None,
    *,
    card: ModelCard | None = None,
    model: Runner | None = None,
    limits: Limits | None = None,
    batching: BatchingSettings | None = None,
    memory: RequestMemory | None = None,
    keys: ApiKeys | None = None,
    settings: ServerSettings | None = None,
    ready: bool = True,
    tracer: RequestTracer | None = None,
    clock: Callable[[], float] = perf_counter,
    openai_token_ids: bool = False,
) -> AsyncIterator[Bench]:
    """A server around `run` and `card`, or around a real `model`."""
    card = model.card if model else card or card_of()
    metrics = Metrics(build_request_series())
    limits = limits or Limits(256, 100_000, 2_000)
    runner = model or TinyRunner(run or mean_of_ids(card.pipeline.full_dimensions))
    dispatcher = Dispatcher(
        [runner],
        limits,
        clock=clock,
        observer=metrics,
    )
    service = EmbeddingService(
        card,
        TextTokenizer.from_card(card) if model else tiny_tokenizer(card.max_length),
        dispatcher,
        batching or BatchingSettings(),
        clock,
        engines=[runner.engine],
    )
    readiness = Readiness()
    if ready:
        metrics.model_loaded(card, limits.batch_tokens, dispatcher, [runner])
        readiness.open(service)
    context = ServerContext(
        readiness,
        "tiny",
        metrics.requests,
        page_of(metrics),
        memory or RequestMemory(2**20, 2**24),
        keys or ApiKeys(),
        tracer=tracer,
        takes_openai_token_ids=openai_token_ids,
    )
    app = create_app(context, settings or ServerSettings())
    built = Bench(app, service, context, dispatcher, metrics)
    try:
        async with built.client:
            yield built
    finally:
        dispatcher.close("the test is over")
        service.close()


def openapi_document() -> dict[str, Any]:
    """The document of a server without a management port."""
    metrics = Metrics(build_request_series())
    memory = RequestMemory(2**20, 2**24)
    context = ServerContext(Readiness(), "tiny", metrics.requests, page_of(metrics), memory)
    return create_app(context, ServerSettings()).openapi()


@asynccontextmanager
async def listening(server: Bench) -> AsyncIterator[int]:
    """The port of a real HTTP server in front of it."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as sock:
        http = HttpServer(server.app, sock, ConnectionMetrics(server.context.metrics))
        try:
            yield sock.getsockname()[1]
        finally:
            await http.abort()
