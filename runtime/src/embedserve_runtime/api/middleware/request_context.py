"""The outermost middleware: identifies, counts, logs and traces each request, and answers its errors."""

from __future__ import annotations

from collections.abc import Set

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embedserve_runtime.api.context import RequestContext, ServerContext
from embedserve_runtime.api.error_response import error_response
from embedserve_runtime.api.errors import CLIENT_CLOSED_REQUEST
from embedserve_runtime.api.headers import read_headers
from embedserve_runtime.api.middleware.disconnect import ClientDisconnected
from embedserve_runtime.api.routes import route_label

_CLOSE = (b"connection", b"close")


class RequestContextMiddleware:
    """Puts a RequestContext into the request's state, and ends it when the request ends.

    A HEAD is handled as a GET: uvicorn leaves the body out, and the headers are those of the GET.

    work: methods and routes of the requests that count as work.
    """

    def __init__(self, app: ASGIApp, server: ServerContext, work: Set[tuple[str, str]]) -> None:
        self._app = app
        self._server = server
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        label = route_label(method, path)
        context = RequestContext(
            self._server,
            label,
            read_headers(scope["headers"]),
            is_work=(method, label) in self._work,
        )
        # uvicorn creates a new state for each request.
        scope.setdefault("state", {})["context"] = context
        inner = {**scope, "method": "GET"} if method == "HEAD" else scope
        status: int | None = None

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = headers = [
                    *message["headers"],
                    (b"x-request-id", context.request_id.encode()),
                ]
                if context.ends_connection and _CLOSE not in headers:
                    headers.append(_CLOSE)
            await send(message)

        try:
            await self._app(inner, receive, send_with_headers)
        except ClientDisconnected:
            pass
        except Exception as error:
            if status is not None:
                raise  # the answer has begun; uvicorn closes the connection
            await error_response(error, inner)(inner, receive, send_with_headers)
        finally:
            if status is not None and status < 400:
                context.facts.failure = None
            context.end(method, CLIENT_CLOSED_REQUEST if status is None else status)
