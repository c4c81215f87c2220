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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedserve_runtime.api.asgi import Answer, ClientGone, Exchange, Header, Receive, Scope, Send
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
    """What all endpoints of the process share. page: the text of `/metrics`."""

    readiness: Readiness
    metrics: RequestMetrics
    page: Callable[[], Awaitable[bytes]]
    intake: Intake
    keys: ApiKeys = field(default_factory=ApiKeys)
    watcher: Watcher = field(default_factory=Watcher)
    tracer: RequestTracer | None = None


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
        metrics = self._around.metrics
        started = time.perf_counter()
        if self._takes_body:
            metrics.work_started()
        headers = dict(scope["headers"])
        request_id = request_id_of(headers)
        status = CLIENT_GONE
        facts = RequestFacts(failure=GONE_CAUSE)
        try:
            answer = await self._answer(headers, request_id, facts, receive, started)
            status = answer.status
            await self._send(answer, request_id, send)
        except ClientGone:
            pass
        finally:
            seconds = time.perf_counter() - started
            if self._takes_body:
                metrics.work_ended()
            metrics.request_done(self._route, status, seconds, facts)
            self._log(status, seconds, request_id, facts)
            if (tracer := self._around.tracer) and self._takes_body:
                done = Done(scope["method"], self._route, status, seconds, request_id, facts)
                tracer.request_done(done, headers)

    async def _answer(
        self,
        headers: dict[bytes, bytes],
        request_id: str,
        facts: RequestFacts,
        receive: Receive,
        started: float,
    ) -> Answer:
        try:
            if not self._is_open:
                self._around.keys.check(headers)
            if self._takes_body:
                answer = await self._read_and_handle(headers, request_id, facts, receive, started)
            else:
                answer = await self._handler(Exchange(headers, b"", request_id, facts))
            facts.failure = None
            return answer
        except EmbedserveError as error:
            wire = wire_of(error)
            facts.failure = wire.cause
            return self._error(wire, error, request_id)
        except ClientGone:
            raise
        except Exception:  # the outermost place: a bug must answer 500 and nothing of its inside
            log.exception("unexpected error", extra={"route": self._route, "request_id": request_id})
            hidden = EmbedserveError("internal error; the log has it under this request id")
            facts.failure = INTERNAL.cause
            return self._error(INTERNAL, hidden, request_id)

    async def _read_and_handle(
        self,
        headers: dict[bytes, bytes],
        request_id: str,
        facts: RequestFacts,
        receive: Receive,
        started: float,
    ) -> Answer:
        reader = BodyReader(self._around.intake, receive)
        watch = self._around.watcher.watch(receive)
        try:
            body = await reader.read(headers)
            watch.body_is_read()
            if self._around.tracer:
                facts.read_seconds = time.perf_counter() - started
            return await self._handler(Exchange(headers, body, request_id, facts))
        except asyncio.CancelledError:
            if watch.verdict is None:
                raise
            watch.task.uncancel()
            raise watch.verdict from None
        finally:
            watch.stop()
            reader.release()

    def _error(self, wire: Wire, error: EmbedserveError, request_id: str) -> Answer:
        headers: tuple[Header, ...] = ()
        if isinstance(error, Overloaded):
            headers = ((b"retry-after", b"%d" % math.ceil(error.retry_after)),)
        elif isinstance(error, Unauthorized):
            headers = (CHALLENGE,)
        elif isinstance(error, MethodNotAllowed):
            headers = ((b"allow", ", ".join(error.allowed).encode()),)
        elif isinstance(error, BodyTooLarge | BodyTimeout):
            headers = ((b"connection", b"close"),)  # the rest of the body is not read
        return Answer(self._error_style(wire, error, request_id), status=wire.status, headers=headers)

    async def _send(self, answer: Answer, request_id: str, send: Send) -> None:
        headers = [
            (b"content-type", answer.content_type),
            (b"content-length", b"%d" % len(answer.body)),
            (b"x-request-id", request_id.encode()),
            *answer.headers,
        ]
        if self._around.readiness.phase is Phase.DRAINING:
            headers.append((b"connection", b"close"))  # moves keep-alive clients to another replica
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def _log(self, status: int, seconds: float, request_id: str, facts: RequestFacts) -> None:
        # Probes, scrapes and scanners that find nothing are no news.
        quiet = not self._takes_body
        level = logging.DEBUG if quiet else logging.INFO if status < 500 else logging.WARNING
        if log.isEnabledFor(level):
            fields = {
                "route": self._route,
                "status": status,
                "milliseconds": round(seconds * 1000, 3),
                "request_id": request_id,
            }
            if facts.inputs:
                fields["inputs"] = facts.inputs
                fields["tokens"] = sum(facts.lengths)
            log.log(level, "request", extra=fields)


def request_id_of(headers: dict[bytes, bytes]) -> str:
    """The client's own id if it is printable and short, else a new one."""
    given = headers.get(b"x-request-id")
    if given and len(given) <= REQUEST_ID_BYTES and given.isascii():
        text = given.decode("ascii")
        if text.isprintable():
            return text
    return f"{_prefix}-{next(_numbers):x}"
