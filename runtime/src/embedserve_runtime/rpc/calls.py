"""Logs calls, counts their messages as requests, and turns their errors into statuses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, NoReturn, TypeAlias

from grpc import StatusCode
from grpc.aio import AbortError, InternalError, ServicerContext

from embedserve_runtime.api.context import RequestContext, ServerContext, choose_request_id
from embedserve_runtime.api.errors import CLIENT_CLOSED_REQUEST
from embedserve_runtime.api.headers import read_headers
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.rpc.statuses import build_trailers, find_status
from embedserve_runtime.service.current_client import get_client

log = logging.getLogger(__name__)

SERVER_FAILURES = frozenset({StatusCode.INTERNAL, StatusCode.DEADLINE_EXCEEDED})
"""The statuses that stand for 500 and 504 of HTTP; a call that ends so is logged in any case. UNAVAILABLE is a refusal
while the server loads or drains, which clients repeat elsewhere."""

# A string, since the library's class takes parameters for type checkers only.
GrpcContext: TypeAlias = "ServicerContext[Any, Any]"
OK = 200


async def refuse_call(
    context: GrpcContext, status: StatusCode, message: str, trailers: tuple[tuple[str, str | bytes], ...]
) -> NoReturn:
    """End a call with a status: raises AbortError, which the library expects to come back to it.

    Raises CancelledError where the client has cancelled the call meanwhile: nothing can be sent any more, and the
    library would log its own error about that with a traceback.
    """
    try:
        await context.abort(status, message, trailers)
    except InternalError as error:
        raise asyncio.CancelledError from error


class CallContext(NamedTuple):
    """One gRPC call, of one message or of a stream.

    headers: its metadata, like those of an HTTP request.
    """

    grpc_context: GrpcContext
    headers: dict[bytes, bytes]
    request_id: str

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the client's deadline; None where it has not set one."""
        return self.grpc_context.time_remaining()


class CallRecorder:
    """Logs calls and counts messages under one label.

    label: the route in metrics and logs, which is the name of the service.
    """

    def __init__(self, server: ServerContext, label: str) -> None:
        self._server = server
        self._label = label

    @asynccontextmanager
    async def record_call(self, context: GrpcContext) -> AsyncGenerator[CallContext]:
        """Log a call, and end it with the status of an error that is raised inside."""
        headers = read_headers(
            [
                (name.encode(), value if isinstance(value, bytes) else value.encode())
                for name, value in context.invocation_metadata() or ()
            ]
        )
        call = CallContext(context, headers, choose_request_id(headers))
        started = time.perf_counter()
        status = StatusCode.CANCELLED
        try:
            yield call
            status = StatusCode.OK
        except EmbedserveError as error:
            refusal = find_status(error)
            try:
                await refuse_call(context, refusal, error.message, build_trailers(error, call.request_id))
            except AbortError:
                status = refusal
                raise
        finally:
            fields = {
                "route": self._label,
                "status": status.name,
                "milliseconds": round((time.perf_counter() - started) * 1000, 3),
                "request_id": call.request_id,
            }
            if (client := get_client()) is not None:
                fields["client"] = client.name
            log.log(self._choose_level(status), "call", extra=fields)

    def _choose_level(self, status: StatusCode) -> int:
        if status in SERVER_FAILURES:
            return logging.WARNING
        return logging.INFO if self._server.logs_requests else logging.DEBUG

    @contextmanager
    def record_request(self, call: CallContext, *, is_work: bool = True) -> Iterator[RequestContext]:
        """Count a message as a request, under the HTTP status of its outcome.

        is_work: whether it counts as in flight and is traced.
        """
        request = RequestContext(
            self._server, self._label, call.headers, is_work=is_work, request_id=call.request_id
        )
        status, code = CLIENT_CLOSED_REQUEST, StatusCode.CANCELLED
        try:
            yield request
            status, code, request.facts.failure = OK, StatusCode.OK, None
        except Exception as error:  # the outermost handler: a bug must not reveal anything
            explained, http_error = request.explain(error)
            status, code = http_error.status, find_status(explained)
            if explained is error:
                raise
            raise explained from error
        finally:
            request.count("", status, request.seconds, code.value[0])

    @contextmanager
    def record_refusals(self, call: CallContext) -> Iterator[None]:
        """Count a request if an error is raised inside, and nothing otherwise.

        It is for checks before a message is read. The request begins and ends with its refusal.
        """
        try:
            yield
        except EmbedserveError:
            with self.record_request(call):
                raise
