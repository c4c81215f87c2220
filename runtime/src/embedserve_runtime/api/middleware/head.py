"""Refuses requests for what their head says, before any of their body is asked for."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from embedserve_runtime.api.context import RequestContext, ServerContext, get_scope_context
from embedserve_runtime.api.errors import UnsupportedMediaType
from embedserve_runtime.api.inputs import check_header_options
from embedserve_runtime.api.responses import JSON
from embedserve_runtime.api.routes import SERVICE_ROUTES


class HeadMiddleware:
    """Checks the heads of requests that count as work.

    A client that sends `Expect: 100-continue` waits for leave to send its body, which it only gets for a request that
    may succeed (RFC 9110, section 10.1.1).
    """

    def __init__(self, app: ASGIApp, server: ServerContext) -> None:
        self._app = app
        self._readiness = server.readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the head of a request. Raises UnsupportedMediaType, NotReady, InvalidInput or VectorSpaceMismatch."""
        context = get_scope_context(scope)
        if context.is_work:
            _check_content_type(context)
            if context.route in SERVICE_ROUTES:
                check_header_options(context, self._readiness.service())
        await self._app(scope, receive, send)


def _check_content_type(context: RequestContext) -> None:
    """Raise UnsupportedMediaType for a body that is not JSON. A missing content type is taken as JSON."""
    content_type = context.headers.get(b"content-type", JSON)
    if content_type != JSON and not _is_json(content_type):
        name = content_type.decode("latin-1")
        raise UnsupportedMediaType(f"content type {name!r} is not taken; send application/json")


def _is_json(content_type: bytes) -> bool:
    media_type = content_type.split(b";", 1)[0].strip().lower()
    return media_type == JSON or (media_type.startswith(b"application/") and media_type.endswith(b"+json"))
