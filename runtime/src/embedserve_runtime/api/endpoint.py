"""One route as plain ASGI: read the bounded body, call the handler, send its answer or its error, count it.

The hot path of the server, so it is kept short: no framework in between, no task and no thread for a request
that is answered quickly.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedserve_runtime.api.asgi import (
    Answer,
    ClientGone,
    Exchange,
    Header,
    Receive,
    Scope,
    Send,
    headers_in,
    lines_of,
)
from embedserve_runtime.api.body import BodyReader, Intake
from embedserve_runtime.api.errors import (
    CLIENT_GONE,
    GONE_CAUSE,
    INTERNAL,
    BodyTimeout,
    BodyTooLarge,
    MethodNotAllowed,
    Wire,
    wire_of,
)
from embedserve_runtime.api.keys import CHALLENGE, ApiKeys
from embedserve_runtime.api.watch import Watcher
from embedserve_runtime.errors import EmbedserveError, Overloaded, Unauthorized
from embedserve_runtime.readiness import Phase, Readiness
from embedserve_runtime.telemetry.requests import Done, RequestFacts, RequestMetrics

if TYPE_CHECKING:  # the library behind it is loaded only where traces are on
    from embedserve_runtime.telemetry.tracing import RequestTracer

log = logging.getLogger(__name__)

Handler = Callable[[Exchange], Awaitable[Answer]]
ErrorStyle = Callable[[Wire, EmbedserveError, str], bytes]

REQUEST_ID_BYTES = 128

_prefix = secrets.token_hex(4)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all endpoints of the process share. page: the text of `/metrics`. http_workers: the processes that speak
    HTTP, this one included. log: gets a line a request."""

    readiness: Readiness
    metrics: RequestMetrics
    page: Callable[[], Awaitable[bytes]]
    intake: Intake
    keys: ApiKeys = field(default_factory=ApiKeys)
    watcher: Watcher = field(default_factory=Watcher)
    tracer: RequestTracer | None = None
    http_workers: int = 1
    log: logging.Logger = log


class Visit:
    """What is known of one request from its head to its end, when it is counted, logged and traced."""

    __slots__ = ("_around", "_is_work", "_route", "_started", "facts", "headers", "request_id")

    def __init__(
        self,
        around: Surroundings,
        route: str,
        headers: Mapping[bytes, bytes],
        *,
        is_work: bool,
        request_id: str | None = None,
    ) -> None:
        """is_work: whether it counts as in flight, and is worth a line in the log; not a probe's. request_id: None
        takes the client's, or makes one."""
        self._started = time.perf_counter()
        self._around = around
        self._route = route
        self._is_work = is_work
        self.headers = headers
        self.request_id = request_id or request_id_of(headers)
        self.facts = RequestFacts(failure=GONE_CAUSE)
        if is_work:
            around.metrics.work_started()

    def undo(self) -> None:
        """The request comes again by another way."""
        if self._is_work:
            self._around.metrics.work_ended()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def exchange(self, body: bytes) -> Exchange:
        return Exchange(self.headers, body, self.request_id, self.facts)

    def failed(self, error: Exception, style: ErrorStyle) -> Answer:
        told, wire = self.told(error)
        return Answer(style(wire, told, self.request_id), status=wire.status, headers=_headers_of(told))

    def told(self, error: Exception) -> tuple[EmbedserveError, Wire]:
        """What the client is told; anything but an EmbedserveError is a bug, of which it learns nothing."""
        if isinstance(error, EmbedserveError):
            told, wire = error, wire_of(error)
        else:
            where = {"route": self._route, "request_id": self.request_id}
            log.error("unexpected error", exc_info=error, extra=where)
            told, wire = EmbedserveError("internal error; the log has it under this request id"), INTERNAL
        self.facts.failure = wire.cause
        return told, wire

    def lines_of(self, answer: Answer) -> bytes:
        """All headers but those of the connection."""
        lines = b"content-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b" % (
            answer.content_type,
            len(answer.body),
            self.request_id.encode(),
            answer.lines,
        )
        return lines + lines_of(answer.headers) if answer.headers else lines

    @property
    def is_last(self) -> bool:
        """Whether the connection ends with the answer, which moves keep-alive clients to another replica."""
        return self._around.readiness.phase is Phase.DRAINING

    def end(self, method: str, status: int) -> None:
        seconds = self.seconds
        self._log(status, seconds)
        self.count(method, status, seconds)

    def count(self, method: str, status: int, seconds: float, rpc_status: int | None = None) -> None:
        """In metrics and traces. method, rpc_status: of `Done`."""
        around = self._around
        if self._is_work:
            around.metrics.work_ended()
        around.metrics.request_done(self._route, status, seconds, self.facts)
        if around.tracer and self._is_work:
            done = Done(method, self._route, status, seconds, self.request_id, self.facts, rpc_status)
            around.tracer.request_done(done, self.headers)

    def _log(self, status: int, seconds: float) -> None:
        # Probes, scrapes and scanners that find nothing are no news.
        quiet = not self._is_work
        level = logging.DEBUG if quiet else logging.INFO if status < 500 else logging.WARNING
        log = self._around.log
        if log.isEnabledFor(level):
            fields = {
                "route": self._route,
                "status": status,
                "milliseconds": round(seconds * 1000, 3),
                "request_id": self.request_id,
            }
            if self.facts.inputs:
                fields["inputs"] = self.facts.inputs
                fields["tokens"] = sum(self.facts.lengths)
            log.log(level, "request", extra=fields)


class Endpoint:
    """`route` is the label in metrics and logs.

    Without `takes_body` a body is not read and nothing is reserved, so probes are answered by a server that
    is full. With `is_open` no API key is asked for.
    """

    def __init__(
        self,
        route: str,
        handler: Handler,
        error_style: ErrorStyle,
        around: Surroundings,
        *,
        takes_body: bool,
        is_open: bool,
    ) -> None:
        self._route = route
        self._handler = handler
        self._error_style = error_style
        self._around = around
        self._takes_body = takes_body
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = Visit(self._around, self._route, dict(scope["headers"]), is_work=self._takes_body)
        status = CLIENT_GONE
        try:
            answer = await self._answer(visit, receive)
            status = answer.status
            headers = headers_in(visit.lines_of(answer))
            if visit.is_last:
                headers.append((b"connection", b"close"))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": answer.body})
        except ClientGone:
            pass
        finally:
            visit.end(scope["method"], status)

    async def _answer(self, visit: Visit, receive: Receive) -> Answer:
        try:
            if not self._is_open:
                self._around.keys.check(visit.headers)
            if self._takes_body:
                answer = await self._read_and_handle(visit, receive)
            else:
                answer = await self._handler(visit.exchange(b""))
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001  # the outermost place of a request; `failed` logs it
            return visit.failed(error, self._error_style)
        visit.facts.failure = None
        return answer

    async def _read_and_handle(self, visit: Visit, receive: Receive) -> Answer:
        reader = BodyReader(self._around.intake, receive)
        watch = self._around.watcher.watch(receive)
        try:
            body = await reader.read(visit.headers)
            watch.body_is_read()
            if self._around.tracer:
                visit.facts.read_seconds = visit.seconds
            return await self._handler(visit.exchange(body))
        except asyncio.CancelledError:
            if watch.verdict is None:
                raise
            watch.task.uncancel()
            raise watch.verdict from None
        finally:
            watch.stop()
            reader.release()


def _headers_of(error: EmbedserveError) -> tuple[Header, ...]:
    if isinstance(error, Overloaded):
        return ((b"retry-after", b"%d" % math.ceil(error.retry_after)),)
    if isinstance(error, Unauthorized):
        return (CHALLENGE,)
    if isinstance(error, MethodNotAllowed):
        return ((b"allow", ", ".join(error.allowed).encode()),)
    if isinstance(error, BodyTooLarge | BodyTimeout):
        return ((b"connection", b"close"),)  # the rest of the body is not read
    return ()


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """The client's own id if it is printable and short, else a new one."""
    given = headers.get(b"x-request-id")
    if given and len(given) <= REQUEST_ID_BYTES and given.isascii():
        text = given.decode("ascii")
        if text.isprintable():
            return text
    return f"{_prefix}-{next(_numbers):x}"
