"""What all requests of a process share, and what is known of one of them."""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from starlette.requests import Request
from starlette.types import Scope

from embedserve_runtime.api.errors import GONE_CAUSE, INTERNAL, HttpError, http_error_of
from embedserve_runtime.api.json_size import JsonBounds
from embedserve_runtime.api.keys import ApiKeys
from embedserve_runtime.api.memory import RequestMemory
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.service import EmbeddingService
from embedserve_runtime.service.readiness import Phase, Readiness
from embedserve_runtime.telemetry.requests import FinishedRequest, RequestFacts, RequestMetrics

if TYPE_CHECKING:  # the library behind it is loaded only where traces are on
    from embedserve_runtime.telemetry.tracing import RequestTracer

log = logging.getLogger(__name__)

MAX_REQUEST_ID_BYTES = 128

_prefix = secrets.token_hex(4)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What all requests of the process share.

    model_name: as answers call the model. metrics_page: makes the text of `/metrics`. http_workers: how many processes
    speak HTTP, this one included. access_log: gets a line for each request.
    """

    readiness: Readiness
    model_name: str
    metrics: RequestMetrics
    metrics_page: Callable[[], Awaitable[bytes]]
    memory: RequestMemory
    keys: ApiKeys = field(default_factory=ApiKeys)
    tracer: RequestTracer | None = None
    json_bounds: JsonBounds = field(default_factory=JsonBounds)
    http_workers: int = 1
    access_log: logging.Logger = log


class RequestContext:
    """What is known of one request from its head to its end, when it is counted, logged and traced.

    headers: of the request, by lower-case name. body: once it is read. facts: filled in while the request is handled.
    is_work: whether it counts as in flight and is worth a line in the log, as probes and scrapes are not.
    """

    __slots__ = ("_server", "_started", "body", "facts", "headers", "is_work", "request_id", "route")

    def __init__(
        self,
        server: ServerContext,
        route: str,
        headers: Mapping[bytes, bytes],
        *,
        is_work: bool,
        request_id: str | None = None,
    ) -> None:
        """route: the label in metrics and logs. request_id: None takes the client's, or makes one."""
        self._started = time.perf_counter()
        self._server = server
        self.route = route
        self.is_work = is_work
        self.headers = headers
        self.body = b""
        self.request_id = request_id or request_id_of(headers)
        self.facts = RequestFacts(failure=GONE_CAUSE)
        if is_work:
            server.metrics.work_started()

    def count_as(self, route: str) -> None:
        """Have the request counted as work of another route."""
        if not self.is_work:
            self.is_work = True
            self._server.metrics.work_started()
        self.route = route

    @property
    def seconds(self) -> float:
        """Since the request's head was read."""
        return time.perf_counter() - self._started

    @property
    def ends_connection(self) -> bool:
        """Whether the connection ends with the answer, which moves keep-alive clients to another replica."""
        return self._server.readiness.phase is Phase.DRAINING

    def explain(self, error: Exception) -> tuple[EmbedserveError, HttpError]:
        """What the client is told of an error; anything but an EmbedserveError is a bug, of which it learns nothing."""
        if isinstance(error, EmbedserveError):
            explained, http_error = error, http_error_of(error)
        else:
            where = {"route": self.route, "request_id": self.request_id}
            log.error("unexpected error", exc_info=error, extra=where)
            explained = EmbedserveError("internal error; the log has it under this request id")
            http_error = INTERNAL
        self.facts.failure = http_error.cause
        return explained, http_error

    def end(self, method: str, status: int) -> None:
        """Count, log and trace the request, which was answered with `status`."""
        seconds = self.seconds
        self._log(status, seconds)
        self.count(method, status, seconds)

    def count(self, method: str, status: int, seconds: float, rpc_status: int | None = None) -> None:
        """Add to metrics and traces. method, rpc_status: as `telemetry.requests.Done` has them."""
        server = self._server
        if self.is_work:
            server.metrics.work_ended()
        server.metrics.request_done(self.route, status, seconds, self.facts)
        if server.tracer and self.is_work:
            done = FinishedRequest(
                method, self.route, status, seconds, self.request_id, self.facts, rpc_status
            )
            server.tracer.request_done(done, self.headers)

    def _log(self, status: int, seconds: float) -> None:
        # Probes, scrapes and scanners that find nothing are no news.
        quiet = not self.is_work
        level = logging.DEBUG if quiet else logging.INFO if status < 500 else logging.WARNING
        access_log = self._server.access_log
        if access_log.isEnabledFor(level):
            fields = {
                "route": self.route,
                "status": status,
                "milliseconds": round(seconds * 1000, 3),
                "request_id": self.request_id,
            }
            if self.facts.inputs:
                fields["inputs"] = self.facts.inputs
                fields["tokens"] = sum(self.facts.lengths)
            access_log.log(level, "request", extra=fields)


def context_of(request: Request) -> RequestContext:
    """The request's own context, which the outermost middleware made."""
    return cast(RequestContext, request.scope["state"]["context"])


def context_in(scope: Scope) -> RequestContext:
    """The same, of an ASGI scope."""
    return cast(RequestContext, scope["state"]["context"])


def server_of(request: Request) -> ServerContext:
    """What the application's requests share."""
    return cast(ServerContext, request.scope["app"].state.context)


def service_of(request: Request) -> EmbeddingService:
    """The model's service. Raises NotReady while there is none."""
    return server_of(request).readiness.service()


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The client's own id if it is printable and short, else a new one."""
    given = headers.get(b"x-request-id")
    if given and len(given) <= MAX_REQUEST_ID_BYTES and given.isascii():
        text = given.decode("ascii")
        if text.isprintable():
            return text
    return f"{_prefix}-{next(_numbers):x}"
