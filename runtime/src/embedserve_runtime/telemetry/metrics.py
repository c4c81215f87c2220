"""Every metric of the runtime, in a registry of its own, all series present from the first scrape.

Updated from the event loop only. What can be read off the queue is read at scrape time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.telemetry.tei import RequestFacts, TeiMetrics

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
POWERS_OF_TWO = tuple(float(2**k) for k in range(17))

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Queue(Protocol):
    """What the gauges read."""

    @property
    def queued_inputs(self) -> int: ...
    @property
    def queued_tokens(self) -> int: ...
    @property
    def queue_seconds(self) -> float: ...


class Metrics:
    """Also the dispatcher's observer."""

    def __init__(
        self,
        routes: Iterable[str],
        statuses: Iterable[int],
        embedding_routes: Container[str],
        causes: Iterable[str],
    ) -> None:
        """embedding_routes: those that the `te_*` names count; causes: why a request of them may fail."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a time of creation for each of some 200 series, all the same
        self.registry = CollectorRegistry()
        self.embedding_routes = embedding_routes
        self.in_flight = 0
        self._queue: Queue | None = None
        self._requests = self._counter("requests", "Requests answered.", ("route", "status"))
        self._durations = self._histogram(
            "request_duration_seconds", "Time from the request's head to its answer.", SECONDS, ("route",)
        )
        self._inputs = self._counter("inputs", "Inputs that have run through the engine.")
        self._tokens = self._counter("tokens", "Tokens that have run through the engine.")
        self._engine_failures = self._counter("engine_failures", "Runs that the engine failed on.")
        self._engine = self._histogram("engine_seconds", "Time of one forward pass.", SECONDS)
        self._batch_inputs = self._histogram("batch_inputs", "Sequences in one batch.", POWERS_OF_TWO)
        self._batch_tokens = self._histogram("batch_tokens", "Tokens in one batch.", POWERS_OF_TWO)
        self._model = Gauge(
            "embedserve_model_info",
            "The model served; always 1.",
            ("model", "revision", "vector_space", "dimensions", "max_length"),
            registry=self.registry,
        )
        self._ready = Gauge("embedserve_ready", "1 while the service is ready.", registry=self.registry)
        self._budget = Gauge(
            "embedserve_max_batch_tokens",
            "Token budget of one batch; 0 until it is known.",
            registry=self.registry,
        )
        self._gauges()
        self._by_route = {route: self._durations.labels(route) for route in routes}
        self._by_status = {
            (route, status): self._requests.labels(route, str(status))
            for route in self._by_route
            for status in statuses
        }
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._tei = TeiMetrics(causes, self.queued_inputs)
        self.registry.register(self._tei)

    def request_done(self, route: str, status: int, seconds: float, facts: RequestFacts) -> None:
        if route in self.embedding_routes:
            self._tei.request_done(facts, seconds)
        counter = self._by_status.get((route, status))
        if counter is None:
            counter = self._by_status[route, status] = self._requests.labels(route, str(status))
        counter.inc()
        self._by_route[route].observe(seconds)

    def batch_done(self, *, inputs: int, tokens: int, seconds: float, failed: bool) -> None:
        self._engine.observe(seconds)
        self._batch_inputs.observe(inputs)
        self._batch_tokens.observe(tokens)
        self._tei.batch_done(inputs, tokens)
        if failed:
            self._engine_failures.inc()
        else:
            self._inputs.inc(inputs)
            self._tokens.inc(tokens)

    def model_loaded(self, card: ModelCard, max_batch_tokens: int, queue: Queue) -> None:
        self._model.labels(
            card.source, card.revision, card.vector_space, str(card.pipeline.dimensions), str(card.max_length)
        ).set(1)
        self._budget.set(max_batch_tokens)
        self._queue = queue

    def ready(self, ready: bool) -> None:
        self._ready.set(int(ready))

    def page(self) -> bytes:
        return generate_latest(self.registry)

    def queued_inputs(self) -> float:
        return float(self._queue.queued_inputs) if self._queue else 0.0

    def _gauges(self) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"embedserve_{name}", text, registry=self.registry)

        gauge("requests_in_flight", "Requests being read, worked on or answered.").set_function(
            lambda: float(self.in_flight)
        )
        gauge("queue_depth", "Inputs waiting for the engine.").set_function(self.queued_inputs)
        gauge("queue_tokens", "Tokens waiting for the engine.").set_function(
            lambda: float(self._queue.queued_tokens) if self._queue else 0.0
        )
        gauge("queue_seconds", "Tokens waiting over the measured rate.").set_function(
            lambda: self._queue.queue_seconds if self._queue else 0.0
        )

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"embedserve_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        return Histogram(f"embedserve_{name}", text, labels, buckets=buckets, registry=self.registry)
