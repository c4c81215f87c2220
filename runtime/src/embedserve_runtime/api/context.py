"""Contexts: of the server, for what its requests share, and of one request."""

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

from embedserve_runtime.api.clients import ClientIdentifier
from embedserve_runtime.api.errors import (
    DISCONNECT_CAUSE,
    INTERNAL,
    HttpError,
    choose_counted_status,
    find_http_error,
)
from embedserve_runtime.api.json_limits import JsonBounds
from embedserve_runtime.api.memory import RequestMemory
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.service import InferenceService
from embedserve_runtime.service.current_client import get_client
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
    """The state that all requests of the process share.

    model_name: the name of the model in answers. metrics_page: renders `/metrics`. http_workers: the number of
    processes that serve HTTP, this one included. takes_openai_token_ids: whether `/v1/embeddings` takes arrays of token
    ids. logs_requests: whether the log has a line for each request; one that failed in the server has it in any case.
    access_log: gets these lines.
    """

    readiness: Readiness
    model_name: str
    metrics: RequestMetrics
    metrics_page: Callable[[], Awaitable[bytes]]
    memory: RequestMemory
    clients: ClientIdentifier = field(default_factory=ClientIdentifier)
    tracer: RequestTracer | None = None
    json_bounds: JsonBounds = field(default_factory=JsonBounds)
    http_workers: int = 1
    takes_openai_token_ids: bool = False
    logs_requests: bool = False
    access_log: logging.Logger = log


class RequestContext:
    """The facts about one request that are counted, logged and traced when it ends.

    headers: by lower-case name. body: set once it is read. is_body_wanted: set once it is about to be read; a client
    with `Expect: 100-continue` waits for that. facts: filled in while the request is handled.
    is_work: whether it counts as in flight and gets a line in the log, unlike probes and scrapes.

    route: the label in metrics and logs. request_id: None takes the client's, or creates one.
    """

    __slots__ = (
        "_server",
        "_started",
        "body",
        "facts",
        "headers",
        "is_body_wanted",
        "is_work",
        "request_id",
        "route",
    )

    def __init__(
        self,
        server: ServerContext,
        route: str,
        headers: Mapping[bytes, bytes],
        *,
        is_work: bool,
        request_id: str | None = None,
    ) -> None:
        self._started = time.perf_counter()
        self._server = server
        self.route = route
        self.is_work = is_work
        self.headers = headers
        self.body = b""
        self.is_body_wanted = False
        self.request_id = request_id or choose_request_id(headers)
        self.facts = RequestFacts(failure=DISCONNECT_CAUSE)
        if is_work:
            server.metrics.work_started()

    def count_as(self, route: str) -> None:
        """Count the request as work of another route."""
        if not self.is_work:
            self.is_work = True
            self._server.metrics.work_started()
        self.route = route

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        return self._server.model_name

    @property
    def seconds(self) -> float:
        """Seconds since the request's head was read."""
        return time.perf_counter() - self._started

    @property
    def ends_connection(self) -> bool:
        """Return whether the connection ends with the answer.

        It does while draining, which moves keep-alive clients to another replica. And where a client still waits for
        leave to send its body: whether it will send it is not known, and so not where its next request begins.
        """
        is_waiting = not self.is_body_wanted and b"expect" in self.headers
        return is_waiting or self._server.readiness.phase is Phase.DRAINING

    def explain(self, error: Exception) -> tuple[EmbedserveError, HttpError]:
        """Return the error that the client sees. Anything but an EmbedserveError is a bug, of which it learns
        nothing."""
        if isinstance(error, EmbedserveError):
            explained, http_error = error, find_http_error(error)
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
        """Add to metrics and traces. method, rpc_status: as in `telemetry.requests.FinishedRequest`."""
        server = self._server
        if self.is_work:
            server.metrics.work_ended()
        server.metrics.request_done(self.route, choose_counted_status(status), seconds, self.facts)
        if server.tracer and self.is_work:
            done = FinishedRequest(
                method, self.route, status, seconds, self.request_id, self.facts, rpc_status
            )
            server.tracer.request_done(done, self.headers)

    def _log(self, status: int, seconds: float) -> None:
        # Probes, scrapes and scanners that find nothing are logged at debug level only.
        is_failure = self.is_work and status >= 500
        is_listed = self.is_work and self._server.logs_requests
        level = logging.WARNING if is_failure else logging.INFO if is_listed else logging.DEBUG
        access_log = self._server.access_log
        if access_log.isEnabledFor(level):
            fields = {
                "route": self.route,
                "status": status,
                "milliseconds": round(seconds * 1000, 3),
                "request_id": self.request_id,
            }
            if (client := get_client()) is not None:
                fields["client"] = client.name
            if self.facts.inputs:
                fields["inputs"] = self.facts.inputs
                fields["tokens"] = sum(self.facts.lengths)
            access_log.log(level, "request", extra=fields)


def get_context(request: Request) -> RequestContext:
    """Return the context of a request, which the outermost middleware created."""
    return cast(RequestContext, request.scope["state"]["context"])


def get_scope_context(scope: Scope) -> RequestContext:
    """Return the context of the request with this ASGI scope."""
    return cast(RequestContext, scope["state"]["context"])


def get_server_context(request: Request) -> ServerContext:
    """Return the context that the requests of an application share."""
    return cast(ServerContext, request.scope["app"].state.context)


def get_service(request: Request) -> InferenceService:
    """Return the model's service. Raises NotReady while there is none."""
    return get_server_context(request).readiness.service()


def choose_request_id(headers: Mapping[bytes, bytes]) -> str:
    """Return the client's request id if it is printable and short, else a new one."""
    header = headers.get(b"x-request-id")
    if header and len(header) <= MAX_REQUEST_ID_BYTES and header.isascii():
        text = header.decode("ascii")
        if text.isprintable():
            return text
    return f"{_prefix}-{next(_numbers):x}"
