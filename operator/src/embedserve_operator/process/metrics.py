"""Counts what the operator does, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PassResult = Literal["succeeded", "incomplete", "failed"]
"""Says what became of a pass: everything was done; some of it could not be; or it ended with an error."""
_PREFIX = "embedserve_operator"
GaugeName = Literal[
    "leader",
    "services",
    "queue_ready",
    "queue_later",
    "upgrades_waiting",
    "upgrades_rolling",
    "upgrades_failed",
]
_GAUGES: Mapping[GaugeName, str] = MappingProxyType(
    {
        "leader": "Whether this process leads: 1 or 0.",
        "services": "Services that this process knows.",
        "queue_ready": "Services that wait for a worker.",
        "queue_later": "Services that wait for a moment, after a failure for example.",
        "upgrades_waiting": "Services whose pods are to be replaced because of the operator, and wait for their turn.",
        "upgrades_rolling": "Services whose pods are being replaced because of the operator.",
        "upgrades_failed": "Services whose pods do not become ready since they were replaced because of the operator.",
    }
)
_PASS_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
_REQUEST_SECONDS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0)


class OperatorMetrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._passes = Counter(
            f"{_PREFIX}_passes", "Passes over a service, by result.", ["result"], registry=self._registry
        )
        self._pass_seconds = Histogram(
            f"{_PREFIX}_pass_seconds", "Time of a pass.", registry=self._registry, buckets=_PASS_SECONDS
        )
        self._requests = Counter(
            f"{_PREFIX}_api_requests",
            "Requests to the API server, by method and status; status 0 is no answer.",
            ["method", "status"],
            registry=self._registry,
        )
        self._request_seconds = Histogram(
            f"{_PREFIX}_api_request_seconds",
            "Time of a request to the API server.",
            registry=self._registry,
            buckets=_REQUEST_SECONDS,
        )
        for result in ("succeeded", "incomplete", "failed"):
            self._passes.labels(result)
        self._gauges = {
            name: Gauge(f"{_PREFIX}_{name}", description, registry=self._registry)
            for name, description in _GAUGES.items()
        }

    def watch_value(self, name: GaugeName, read: Callable[[], float]) -> None:
        """Report a value that is read whenever the metrics are, instead of 0."""
        self._gauges[name].set_function(read)

    def count_pass(self, result: PassResult, seconds: float) -> None:
        """Count a pass over a service."""
        self._passes.labels(result).inc()
        self._pass_seconds.observe(seconds)

    def count_request(self, method: str, status: int, seconds: float) -> None:
        """Count a request to the API server; `status` is 0 where there was no answer."""
        self._requests.labels(method, str(status)).inc()
        self._request_seconds.observe(seconds)

    def format_page(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
