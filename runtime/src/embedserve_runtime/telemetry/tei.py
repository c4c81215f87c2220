"""The `te_*` metrics of Text Embeddings Inference, for dashboards and alerts that read them.

Names, labels and buckets are TEI's. Other than TEI's, all series are there from the first scrape, every request is
counted once, and count is always success plus failure. Histograms are our own: one observation of many equal
values costs as much as one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = tuple(1e-5 * 1.5**k for k in range(1, 36))
INPUT_LENGTHS = tuple(float(2**k) for k in range(20))
BATCH_SIZES = tuple(float(2**k) for k in range(13))
BATCH_TOKENS = tuple(float(2**k) for k in range(21))

METHODS = ("single", "batch")
STAGES = ("tokenization", "queue", "inference")


@dataclass(slots=True)
class RequestFacts:
    """What is known of a request, filled in while it is handled. Seconds are means over the inputs.

    failure: its cause, if it failed. lengths: tokens of each input, once they are answered.
    """

    failure: str | None = None
    is_batch: bool = False
    inputs: int = 0
    lengths: Sequence[int] = ()
    tokenize_seconds: float = 0.0
    queue_seconds: float = 0.0
    engine_seconds: float = 0.0


class _Histogram:
    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._text = text
        self._bounds = bounds
        self._labels = (*(f"{bound:g}" for bound in bounds), "+Inf")
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def metric(self) -> Metric:
        buckets: list[tuple[str, float]] = []
        total = 0
        for label, count in zip(self._labels, self._counts, strict=True):
            total += count
            buckets.append((label, total))
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric((), buckets, self._sum)
        return family


class TeiMetrics(Collector):
    """Updated from the event loop only; `queued_inputs` is read at scrape time."""

    def __init__(self, causes: Iterable[str], queued_inputs: Callable[[], float]) -> None:
        self._queued_inputs = queued_inputs
        self._counts = dict.fromkeys(METHODS, 0)
        self._successes = dict.fromkeys(METHODS, 0)
        self._failures = dict.fromkeys(causes, 0)
        self._embed = [0, 0]
        self._requests = _durations("te_request", "of one request")
        self._embeds = _durations("te_embed", "of one input")
        self._input_lengths = _Histogram("te_request_input_length", "Tokens of one input.", INPUT_LENGTHS)
        self._batch_sizes = _Histogram("te_batch_next_size", "Inputs of one batch.", BATCH_SIZES)
        self._batch_tokens = _Histogram("te_batch_next_tokens", "Tokens of one batch.", BATCH_TOKENS)

    def request_done(self, request: RequestFacts, seconds: float) -> None:
        method = "batch" if request.is_batch else "single"
        self._counts[method] += 1
        self._embed[0] += request.inputs
        if request.failure is not None:
            self._failures[request.failure] += 1
            return
        self._successes[method] += 1
        self._embed[1] += request.inputs
        stages = (seconds, request.tokenize_seconds, request.queue_seconds, request.engine_seconds)
        for ours, inputs, value in zip(self._requests, self._embeds, stages, strict=True):
            ours.observe(value)
            inputs.observe(value, request.inputs)
        for length in request.lengths:
            self._input_lengths.observe(length)

    def batch_done(self, inputs: int, tokens: int) -> None:
        self._batch_sizes.observe(inputs)
        self._batch_tokens.observe(tokens)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        yield _gauge("te_queue_size", "Inputs waiting for the engine.", self._queued_inputs())
        yield _counter("te_request_count", "Requests answered.", "method", self._counts)
        yield _counter("te_request_success", "Requests answered as asked.", "method", self._successes)
        yield _counter("te_request_failure", "Requests answered with an error.", "err", self._failures)
        for name, text, value in zip(
            ("te_embed_count", "te_embed_success"),
            ("Inputs of requests answered.", "Inputs of requests answered as asked."),
            self._embed,
            strict=True,
        ):
            yield _counter(name, text, None, {"": value})
        histograms = (
            *self._requests,
            *self._embeds,
            self._input_lengths,
            self._batch_sizes,
            self._batch_tokens,
        )
        for histogram in histograms:
            yield histogram.metric()


def _durations(prefix: str, what: str) -> tuple[_Histogram, ...]:
    whole = _Histogram(f"{prefix}_duration", f"Seconds {what}.", SECONDS)
    stages = (
        _Histogram(f"{prefix}_{stage}_duration", f"Seconds {what}: {stage}.", SECONDS) for stage in STAGES
    )
    return (whole, *stages)


def _gauge(name: str, text: str, value: float) -> Metric:
    metric = Metric(name, text, "gauge")
    metric.add_sample(name, {}, value)
    return metric


def _counter(name: str, text: str, label: str | None, values: dict[str, int]) -> Metric:
    """Untyped: the text format would have counters end in `_total`, and these names are given."""
    metric = Metric(name, text, "unknown")
    for value, count in values.items():
        metric.add_sample(name, {label: value} if label else {}, count)
    return metric
