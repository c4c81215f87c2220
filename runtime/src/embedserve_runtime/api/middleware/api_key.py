"""Checks API keys before a body is read, which is why they are not a dependency of the routes."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from embedserve_runtime.api.api_keys import ApiKeys
from embedserve_runtime.api.context import get_scope_context
from embedserve_runtime.api.routes import PROTECTED_ROUTES


class ApiKeyMiddleware:
    """Raises Unauthorized for a keyed route without a valid key. Probes, metrics and documents are open."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = get_scope_context(scope)
        if context.route in PROTECTED_ROUTES:
            self._keys.check(context.headers)
        await self._app(scope, receive, send)
