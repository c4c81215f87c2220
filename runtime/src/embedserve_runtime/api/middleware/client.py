"""Identifies the client before the body is read; a dependency of the routes would run only after it."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from embedserve_runtime.api.clients import ClientIdentifier
from embedserve_runtime.api.context import get_scope_context
from embedserve_runtime.api.routes import PROTECTED_ROUTES
from embedserve_runtime.service.current_client import begin_request


class ClientMiddleware:
    """Raises Unauthorized for a keyed route without a valid key, RouteForbidden where the key is not for it.

    Probes, metrics and documents are open.
    """

    def __init__(self, app: ASGIApp, clients: ClientIdentifier) -> None:
        self._app = app
        self._clients = clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = get_scope_context(scope)
        if context.route in PROTECTED_ROUTES:
            # Each request has a task of its own, so that nothing is to be reset.
            begin_request(self._clients.identify(context.headers, context.route))
        await self._app(scope, receive, send)
