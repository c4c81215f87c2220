"""The context that the requests of a front end share, built from its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from embedserve_runtime.api.api_keys import ApiKeys
from embedserve_runtime.api.clients import ClientIdentifier
from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.api.errors import CAUSES, STATUSES
from embedserve_runtime.api.json_limits import MAX_JSON_VALUES, MIN_JSON_BOUND, JsonBounds
from embedserve_runtime.api.memory import MIN_REQUEST_BYTES, RequestMemory
from embedserve_runtime.api.routes import (
    EMBEDDING_ROUTES,
    OTHER,
    ROUTES,
    RPC_EMBEDDING_SERVICES,
    RPC_SERVICES,
)
from embedserve_runtime.config import BatchingSettings, ServerSettings
from embedserve_runtime.frontends.front_end import FrontEndSettings
from embedserve_runtime.service.readiness import Readiness
from embedserve_runtime.telemetry.requests import RequestFacts, RequestMetrics, RequestSeries

if TYPE_CHECKING:
    from embedserve_runtime.telemetry.tracing import RequestTracer


class ConnectionMetrics:
    """Counts what the HTTP server says of its connections."""

    def __init__(self, metrics: RequestMetrics) -> None:
        self._metrics = metrics
        self.connection_opened = metrics.connection_opened
        self.connection_closed = metrics.connection_closed

    def refused(self, status: int) -> None:
        self._metrics.request_done(OTHER, status, 0.0, RequestFacts())


def build_request_series() -> RequestSeries:
    return RequestSeries(
        (*ROUTES, *RPC_SERVICES), STATUSES, (*EMBEDDING_ROUTES, *RPC_EMBEDDING_SERVICES), CAUSES
    )


def build_server_context(
    settings: FrontEndSettings,
    readiness: Readiness,
    metrics: RequestMetrics,
    metrics_page: Callable[[], Awaitable[bytes]],
) -> ServerContext:
    """Build the context that the requests of this process share."""
    server = settings.server
    # Each process keeps within its share, which has room for one body of the largest size.
    share = max(server.max_pending_bytes // server.first_workers, server.max_body_bytes + MIN_REQUEST_BYTES)
    return ServerContext(
        readiness,
        settings.model_name,
        metrics,
        metrics_page,
        RequestMemory(server.max_body_bytes, share),
        _build_clients(server),
        tracer=_build_tracer(settings),
        json_bounds=_json_bounds(settings.batching),
        http_workers=server.first_workers,
        takes_openai_token_ids=server.openai_token_ids,
        logs_requests=server.access_log,
    )


def _build_clients(server: ServerSettings) -> ClientIdentifier:
    header = server.client_header
    return ClientIdentifier(
        ApiKeys(server.api_keys, server.api_keys_file),
        None if header is None else header.lower().encode(),
        server.client_requests_per_minute,
        server.client_tokens_per_minute,
    )


def _json_bounds(batching: BatchingSettings) -> JsonBounds:
    """Return the bounds of JSON bodies: no more than could wait in the queue, as texts or as token ids, and of these no
    more than are parsed at once.

    An input is one array of token ids, and has two more where it has a span; other fields have values and arrays too.
    """
    tokens, inputs = min(batching.max_queue_tokens, MAX_JSON_VALUES), batching.max_queue_inputs
    return JsonBounds(max(tokens, inputs, MIN_JSON_BOUND), max(4 * inputs, MIN_JSON_BOUND))


def _build_tracer(settings: FrontEndSettings) -> RequestTracer | None:
    if not settings.telemetry.has_traces:
        return None
    # Imported here, since the library takes 20 MB that a server without traces need not have.
    from embedserve_runtime.telemetry.tracing import RequestTracer

    return RequestTracer(settings.telemetry.otlp_endpoint, settings.model_name)
