"""Renders the metrics page: the metrics of the engine's process, and the sums over the front ends.

All series exist from the first scrape. They are updated from the event loop only; the state of the queue and of the
processes is read at scrape time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from embedserve_runtime.forward.engine import EngineDescription, MemoryStatus
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.telemetry.requests import RequestMetrics, RequestSeries
from embedserve_runtime.telemetry.series import Histogram, Row, SeriesLayout

ENGINE_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
POWERS_OF_TWO = tuple(float(2**k) for k in range(17))
TEI_BATCH_SIZES = tuple(float(2**k) for k in range(13))
TEI_BATCH_TOKENS = tuple(float(2**k) for k in range(21))

MAX_CLIENT_NAMES = 1_000
OTHER_CLIENTS = "_other"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
"""Ticks in a second, in which the kernel counts CPU time."""


class QueueState(Protocol):
    """The state of the queue that gauges read."""

    @property
    def queued_inputs(self) -> int: ...
    @property
    def queued_tokens(self) -> int: ...
    @property
    def queue_seconds(self) -> float: ...


class MeasuredRunner(Protocol):
    """A runner with the figures that metrics show."""

    @property
    def engine(self) -> EngineDescription: ...
    @property
    def memory(self) -> MemoryStatus: ...
    @property
    def recomputed(self) -> int: ...


class Metrics:
    """All metrics of the server; also the dispatcher's observer.

    requests: the metrics of this process's own front end. pids: process ids by the name that their memory has on the
    page.
    """

    def __init__(self, series: RequestSeries) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # each series would have the same time of creation
        self.series = series
        self.requests = RequestMetrics(series, series.layout.new_row())
        self.registry = CollectorRegistry()
        self.pids: dict[str, int] = {"engine": os.getpid()}
        self._rows: list[Row] = [self.requests.row]
        self._queue: QueueState | None = None
        self._max_batch_tokens = 0
        self._runners: Sequence[MeasuredRunner] = ()
        self._engine = _EngineSeries()
        self._clients = _ClientSeries(self.registry)
        self._add_gauges()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.registry.register(_MetricsCollector(lambda: series.layout.metrics(self._rows)))
        self.registry.register(_MetricsCollector(self._engine.metrics))
        self.registry.register(_MetricsCollector(self._collect_memory))
        self.registry.register(_MetricsCollector(self._collect_engines))

    def add_row(self, row: Row) -> None:
        """Add the counts of another front end to the sums."""
        self._rows.append(row)

    def batch_done(self, *, inputs: int, tokens: int, padding: int, seconds: float, failed: bool) -> None:
        self._engine.batch_done(inputs, tokens, padding, seconds, failed)

    def client_request(
        self, client: str, *, requests: int, inputs: int, tokens: int, refusal: str | None
    ) -> None:
        labelled = self._clients.find_label(client)
        self._clients.requests.labels(labelled, refusal or "").inc(requests)
        if refusal is None:
            self._clients.inputs.labels(labelled).inc(inputs)
            self._clients.tokens.labels(labelled).inc(tokens)

    def worker_replaced(self) -> None:
        self._engine.worker_replaced()

    def model_loaded(
        self, card: ModelCard, max_batch_tokens: int, queue: QueueState, runners: Sequence[MeasuredRunner]
    ) -> None:
        self._runners = runners
        self._model.labels(
            card.source,
            card.revision,
            card.vector_space,
            runners[0].engine.compute_precision,
            str(card.pipeline.dimensions),
            str(card.max_length),
        ).set(1)
        self.change_budget(max_batch_tokens)
        self._queue = queue

    def change_budget(self, max_batch_tokens: int) -> None:
        """Tell another token budget of a batch."""
        self._budget.set(max_batch_tokens)
        self._max_batch_tokens = max_batch_tokens

    def memory_planned(self, limit: int | None, planned: int) -> None:
        """Record the planned memory. limit: of the container, in bytes; None without one."""
        self._memory_limit.set(limit or 0)
        self._memory_planned.set(planned)

    def set_ready(self, ready: bool) -> None:
        self._ready.set(int(ready))

    def page(self) -> bytes:
        return generate_latest(self.registry)

    def _add_gauges(self) -> None:
        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(name, text, labels, registry=self.registry)

        def read(name: str, text: str, value: Callable[[QueueState], float]) -> None:
            gauge(name, text).set_function(lambda: float(value(self._queue)) if self._queue else 0.0)

        read("embedserve_queue_depth", "Inputs waiting for the engine.", lambda queue: queue.queued_inputs)
        read("embedserve_queue_tokens", "Tokens waiting for the engine.", lambda queue: queue.queued_tokens)
        read(
            "embedserve_queue_seconds",
            "Seconds that the engine needs for the tokens waiting, at the measured rate.",
            lambda queue: queue.queue_seconds,
        )
        read("te_queue_size", "Inputs waiting for the engine.", lambda queue: queue.queued_inputs)
        self._model = gauge(
            "embedserve_model_info",
            "The model served; always 1.",
            ("model", "revision", "vector_space", "compute", "dimensions", "max_length"),
        )
        self._ready = gauge("embedserve_ready", "1 while the service is ready.")
        self._budget = gauge("embedserve_max_batch_tokens", "Token budget of one batch; 0 until it is known.")
        self._memory_limit = gauge(
            "embedserve_memory_limit_bytes", "Memory limit of the container; 0 without one."
        )
        self._memory_planned = gauge(
            "embedserve_memory_planned_bytes", "Memory that the server plans to take at the highest."
        )
        gauge("embedserve_http_workers", "Front-end processes beside the engine's own.").set_function(
            lambda: float(len(self.pids) - 1)
        )

    def _collect_engines(self) -> Iterator[Metric]:
        name = "embedserve_engine_info"
        info = Metric(name, "How the engine on each device runs the model; always 1.", "gauge")
        name = "embedserve_engine_parity"
        parity = Metric(name, "Least cosine of vectors in 8 bit to those in 16, measured at start.", "gauge")
        name = "embedserve_out_of_memory"
        out_of_memory = Metric(name, "Batches that did not fit into the device's memory.", "counter")
        name = "embedserve_engine_max_batch_tokens"
        limit = Metric(
            name, "Tokens that the engine runs as one batch; lower for a time after memory ran out.", "gauge"
        )
        name = "embedserve_recomputed_inputs"
        recomputed = Metric(
            name,
            "Inputs whose results were not finite in reduced precision, run again in float32.",
            "counter",
        )
        for number, runner in enumerate(self._runners):
            facts, labels = runner.engine, {"engine": str(number)}
            what = {"kind": facts.kind, "device": facts.device, "precision": facts.precision}
            info.add_sample(info.name, labels | what | {"attention": facts.attention or ""}, 1.0)
            if facts.parity is not None:
                parity.add_sample(parity.name, labels, facts.parity.min_cosine)
            memory, budget = runner.memory, self._max_batch_tokens
            out_of_memory.add_sample(f"{out_of_memory.name}_total", labels, float(memory.failures))
            limit.add_sample(limit.name, labels, float(min(budget, memory.max_batch_tokens or budget)))
            recomputed.add_sample(f"{recomputed.name}_total", labels, float(runner.recomputed))
        yield from (info, parity, out_of_memory, limit, recomputed)

    def _collect_memory(self) -> Iterator[Metric]:
        name = "embedserve_resident_memory_bytes"
        metric = Metric(name, "Resident memory of each process of the server, bytes.", "gauge")
        for process, pid in self.pids.items():
            metric.add_sample(name, {"process": process}, float(resident_bytes(pid)))
        yield metric


class _EngineSeries:
    """The series that the engine's process counts."""

    def __init__(self) -> None:
        self._layout = layout = SeriesLayout()
        self._inputs = layout.add("counter", "embedserve_inputs", "Inputs that have run through the engine.")
        self._tokens = layout.add("counter", "embedserve_tokens", "Tokens that have run through the engine.")
        self._padding = layout.add(
            "counter",
            "embedserve_padding_tokens",
            "Positions that attention computed beside the real tokens, to give sequences one length.",
        )
        self._failures = layout.add(
            "counter", "embedserve_engine_failures", "Runs that the engine failed on."
        )
        self._replaced = layout.add(
            "counter", "embedserve_http_workers_replaced", "Front-end processes that died and were replaced."
        )
        families = (
            ("embedserve_engine_seconds", "Seconds of one forward pass.", ENGINE_SECONDS),
            ("embedserve_batch_inputs", "Sequences in one batch.", POWERS_OF_TWO),
            ("embedserve_batch_tokens", "Tokens in one batch.", POWERS_OF_TWO),
            ("te_batch_next_size", "Inputs of one batch.", TEI_BATCH_SIZES),
            ("te_batch_next_tokens", "Tokens of one batch.", TEI_BATCH_TOKENS),
        )
        added = [layout.add_histogram(name, text, bounds) for name, text, bounds in families]
        self._row = layout.new_row()
        self._seconds, *rest = (Histogram(family, self._row) for family in added)
        self._sizes, self._batch_tokens, self._tei_sizes, self._tei_tokens = rest

    def batch_done(self, inputs: int, tokens: int, padding: int, seconds: float, failed: bool) -> None:
        row = self._row
        self._seconds.observe(seconds)
        self._sizes.observe(inputs)
        self._batch_tokens.observe(tokens)
        self._tei_sizes.observe(inputs)
        self._tei_tokens.observe(tokens)
        if failed:
            row[self._failures.start] += 1
        else:
            row[self._inputs.start] += inputs
            row[self._tokens.start] += tokens
            row[self._padding.start] += padding

    def worker_replaced(self) -> None:
        self._row[self._replaced.start] += 1

    def metrics(self) -> Iterator[Metric]:
        return self._layout.metrics([self._row])


class _ClientSeries:
    """Counts what the clients use, where they are told apart.

    Names come from keys and from a gateway's header, so their number is bounded: those beyond it are counted together.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "embedserve_client_requests",
            "Requests of a client that came to the queue; reason: empty, or why they were refused.",
            ("client", "reason"),
            registry=registry,
        )
        self.inputs = Counter(
            "embedserve_client_inputs", "Inputs of a client admitted.", ("client",), registry=registry
        )
        self.tokens = Counter(
            "embedserve_client_tokens", "Tokens of a client admitted.", ("client",), registry=registry
        )
        self._names: set[str] = set()

    def find_label(self, client: str) -> str:
        """Return the name under which a client is counted."""
        if client not in self._names and len(self._names) >= MAX_CLIENT_NAMES:
            return OTHER_CLIENTS
        self._names.add(client)
        return client


class _MetricsCollector(Collector):
    """Collects metrics by calling a function."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has taken, to 0.01 s; 0 for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    user, system = fields[11:13]  # 14 and 15 of proc(5), after the name in brackets
    return (int(user) + int(system)) / CLOCK_TICKS


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 for one that has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * PAGE_BYTES
