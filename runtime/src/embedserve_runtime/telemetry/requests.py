"""Counts the requests of a front end, in our series and in the `te_*` series of Text Embeddings Inference.

Names, labels and buckets of `te_*` are TEI's, for dashboards that read them. Unlike TEI's, all series exist
from the first scrape, every request is counted once, and count is always success plus failure.

Updated from one event loop only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec import Struct

from embedserve_runtime.telemetry.series import Histogram, HistogramPair, MetricFamily, Row, SeriesLayout

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
TEI_SECONDS = tuple(1e-5 * 1.5**k for k in range(1, 36))
INPUT_LENGTHS = tuple(float(2**k) for k in range(20))
METHODS = ("single", "batch")
TOKEN_ID_OUTCOMES = ("taken", "refused")
REUSE_SOURCES = ("cache", "in_flight")
STAGES = ("tokenization", "queue", "inference")


class RequestFacts(Struct):
    """The facts about a request, filled in while it is handled. Seconds are means over the inputs.

    failure: the cause, if it failed. lengths: the tokens of each input, once they are answered. cached, joined: how
    many inputs were not run, for the cache or an equal input that was running.
    read_seconds: until the body was read; noted for traces only. service_seconds: from there to the results.
    """

    failure: str | None = None
    is_batch: bool = False
    inputs: int = 0
    lengths: Sequence[int] = ()
    cached: int = 0
    joined: int = 0
    tokenize_seconds: float = 0.0
    queue_seconds: float = 0.0
    engine_seconds: float = 0.0
    read_seconds: float = 0.0
    service_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that has been answered. seconds: the time from its beginning to now.

    rpc_status: the status number of a gRPC call; then method is empty, route is the service, and status the HTTP status
    of the same meaning.
    """

    method: str
    route: str
    status: int
    seconds: float
    request_id: str
    facts: RequestFacts
    rpc_status: int | None = None


class RequestSeries:
    """The series of one front end; all front ends of a server have the same.

    embedding_routes: the routes that the `te_*` series count. causes: the reasons for which their requests may fail.
    """

    def __init__(
        self,
        routes: Collection[str],
        statuses: Collection[int],
        embedding_routes: Collection[str],
        causes: Iterable[str],
    ) -> None:
        self.layout = layout = SeriesLayout()
        self.embedding_routes = frozenset(embedding_routes)
        pairs = [(route, str(status)) for route in routes for status in statuses]
        self.requests = layout.add(
            "counter", "embedserve_requests", "Requests answered.", ("route", "status"), pairs
        )
        self.durations = layout.add_histogram(
            "embedserve_request_duration_seconds",
            "Seconds from a request's head to its answer.",
            SECONDS,
            ("route",),
            [(route,) for route in routes],
        )
        self.in_flight = layout.add(
            "gauge",
            "embedserve_requests_in_flight",
            "Requests with a body being read, worked on or answered.",
        )
        self.connections = layout.add("gauge", "embedserve_connections", "Open connections of clients.")
        self.token_ids = layout.add(
            "counter",
            "embedserve_openai_token_id_requests",
            "Requests to /v1/embeddings with token ids, which may be those of another vocabulary.",
            ("outcome",),
            [(outcome,) for outcome in TOKEN_ID_OUTCOMES],
        )
        self.reused = layout.add(
            "counter",
            "embedserve_reused_inputs",
            "Inputs answered without running: cached, or joined to an equal one that was running.",
            ("source",),
            [(source,) for source in REUSE_SOURCES],
        )
        self._add_tei_series(causes)

    def _add_tei_series(self, causes: Iterable[str]) -> None:
        """Add the series that TEI has, by its names."""
        layout, methods = self.layout, [(method,) for method in METHODS]
        self.counts = layout.add("untyped", "te_request_count", "Requests answered.", ("method",), methods)
        self.successes = layout.add(
            "untyped", "te_request_success", "Requests answered as asked.", ("method",), methods
        )
        self.failures = layout.add(
            "untyped",
            "te_request_failure",
            "Requests answered with an error.",
            ("err",),
            [(cause,) for cause in causes],
        )
        self.inputs = layout.add("untyped", "te_embed_count", "Inputs of requests answered.")
        self.inputs_answered = layout.add(
            "untyped", "te_embed_success", "Inputs of requests answered as asked."
        )
        self.request_stages = self._stages("te_request", "of one request")
        self.input_stages = self._stages("te_embed", "of one input")
        self.lengths = layout.add_histogram("te_request_input_length", "Tokens of one input.", INPUT_LENGTHS)

    def clear_gauges(self, row: Row) -> None:
        """Set the gauges of a front end that has died to zero."""
        for family in self.layout.families:
            if family.kind == "gauge":
                for offset in family.offsets().values():
                    row[offset] = 0.0

    def _stages(self, prefix: str, what: str) -> tuple[MetricFamily, ...]:
        names = [(f"{prefix}_duration", f"Seconds {what}.")]
        names += [(f"{prefix}_{stage}_duration", f"Seconds {what}: {stage}.") for stage in STAGES]
        return tuple(self.layout.add_histogram(name, text, TEI_SECONDS) for name, text in names)


class RequestMetrics:
    """Counts requests in one row."""

    def __init__(self, series: RequestSeries, row: Row) -> None:
        self.series = series
        self.row = row
        self._in_flight = series.in_flight.start
        self._connections = series.connections.start
        self._by_status = {
            (route, int(status)): offset for (route, status), offset in series.requests.offsets().items()
        }
        self._durations = {
            route: Histogram(series.durations, row, (route,)) for (route,) in series.durations.members
        }
        self._counts = {labels[0]: offset for labels, offset in series.counts.offsets().items()}
        self._successes = {labels[0]: offset for labels, offset in series.successes.offsets().items()}
        self._failures = {labels[0]: offset for labels, offset in series.failures.offsets().items()}

    def work_started(self) -> None:
        """Count a request in flight. Probes and scrapes are not counted: a pod that only answers those is idle."""
        self.row[self._in_flight] += 1

    def work_ended(self) -> None:
        self.row[self._in_flight] -= 1

    def request_done(self, route: str, status: int, seconds: float, facts: RequestFacts) -> None:
        """Count a finished request. Raises KeyError for a route or a status that is not among the series."""
        row = self.row
        row[self._by_status[route, status]] += 1
        self._durations[route].observe(seconds)
        if route in self.series.embedding_routes:
            self._count_for_tei(facts, seconds)

    def token_ids_sent(self, outcome: str) -> None:
        """Count a request to `/v1/embeddings` with token ids. outcome: one of TOKEN_ID_OUTCOMES."""
        self.row[self.series.token_ids.offsets()[(outcome,)]] += 1

    def connection_opened(self) -> None:
        self.row[self._connections] += 1

    def connection_closed(self) -> None:
        self.row[self._connections] -= 1

    def _count_for_tei(self, facts: RequestFacts, seconds: float) -> None:
        row, inputs = self.row, facts.inputs
        method = "batch" if facts.is_batch else "single"
        row[self._counts[method]] += 1
        row[self.series.inputs.start] += inputs
        if facts.failure is not None:
            row[self._failures[facts.failure]] += 1
            return
        row[self._successes[method]] += 1
        row[self.series.inputs_answered.start] += inputs
        total, tokenizing, queue, engine = self._stages
        total.observe(seconds, inputs)
        tokenizing.observe(facts.tokenize_seconds, inputs)
        queue.observe(facts.queue_seconds, inputs)
        engine.observe(facts.engine_seconds, inputs)
        if facts.cached or facts.joined:
            cached, joined = (self.series.reused.offsets()[(source,)] for source in REUSE_SOURCES)
            row[cached] += facts.cached
            row[joined] += facts.joined
        lengths = self._lengths
        for length in facts.lengths:
            lengths.observe(length)

    @cached_property
    def _stages(self) -> tuple[HistogramPair, ...]:
        """The histograms that get a value once for a request and once for each of its inputs."""
        return tuple(
            HistogramPair(Histogram(request_series, self.row), Histogram(input_series, self.row))
            for request_series, input_series in zip(
                self.series.request_stages, self.series.input_stages, strict=True
            )
        )

    @cached_property
    def _lengths(self) -> Histogram:
        return Histogram(self.series.lengths, self.row)
