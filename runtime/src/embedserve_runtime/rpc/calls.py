"""What holds for every call: it is logged, its messages are counted as requests, and its errors become statuses."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeAlias

from grpc import StatusCode
from grpc.aio import ServicerContext

from embedserve_runtime.api.context import RequestContext, ServerContext, request_id_of
from embedserve_runtime.api.errors import CLIENT_GONE
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.rpc.statuses import status_of, trailers_of

log = logging.getLogger(__name__)

# A string, since the library's class takes parameters for type checkers only.
LibraryContext: TypeAlias = "ServicerContext[Any, Any]"
OK = 200


class CallContext(NamedTuple):
    """One call, of one message or of a stream. headers: its metadata, as an HTTP request would have them."""

    library: LibraryContext
    headers: dict[bytes, bytes]
    request_id: str

    @property
    def seconds_left(self) -> float | None:
        """The time until the client's deadline; None where it has set none."""
        return self.library.time_remaining()


class CallRecorder:
    """Logs calls and counts messages under one label."""

    def __init__(self, server: ServerContext, label: str) -> None:
        """label: the route in metrics and logs, which is the name of the service."""
        self._server = server
        self._label = label

    @asynccontextmanager
    async def call(self, context: LibraryContext) -> AsyncGenerator[CallContext]:
        """Logs a call, and ends it with the status of an error that is raised inside."""
        headers = {
            name.encode(): value if isinstance(value, bytes) else value.encode()
            for name, value in context.invocation_metadata() or ()
        }
        call = CallContext(context, headers, request_id_of(headers))
        started = time.perf_counter()
        status = StatusCode.CANCELLED
        try:
            yield call
            status = StatusCode.OK
        except EmbedserveError as error:
            status = status_of(error)
            await context.abort(status, error.message, trailers_of(error, call.request_id))
        finally:
            fields = {
                "route": self._label,
                "status": status.name,
                "milliseconds": round((time.perf_counter() - started) * 1000, 3),
                "request_id": call.request_id,
            }
            log.info("call", extra=fields)

    @contextmanager
    def request(self, call: CallContext, *, is_work: bool = True) -> Iterator[RequestContext]:
        """Counts a message as a request, under the status that HTTP has for what comes of it inside.

        is_work: whether it counts as in flight and is traced.
        """
        request = RequestContext(
            self._server, self._label, call.headers, is_work=is_work, request_id=call.request_id
        )
        status, code = CLIENT_GONE, StatusCode.CANCELLED
        try:
            yield request
            status, code, request.facts.failure = OK, StatusCode.OK, None
        except Exception as error:  # the outermost place: a bug must tell nothing of the inside
            explained, http_error = request.explain(error)
            status, code = http_error.status, status_of(explained)
            if explained is error:
                raise
            raise explained from error
        finally:
            request.count("", status, request.seconds, code.value[0])

    @contextmanager
    def refusals(self, call: CallContext) -> Iterator[None]:
        """Counts a request where an error is raised inside, and nothing otherwise.

        It is for what is checked before a message is read. The request begins and ends with its refusal.
        """
        try:
            yield
        except EmbedserveError:
            with self.request(call):
                raise
