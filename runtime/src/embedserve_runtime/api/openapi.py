"""Serves the OpenAPI document, with the API keys: middleware checks them, so FastAPI does not know of them."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from embedserve_runtime.api.responses import BytesResponse
from embedserve_runtime.api.routes import PROTECTED_ROUTES, route_label

_PATH = "/openapi.json"
_TEI_PATH = "/api-doc/openapi.json"
_SCHEME = "ApiKey"


class DocumentEndpoint:
    """Answers with the document of an application, which is built at the first request.

    That takes 0.1 to 0.5 s, for which FastAPI's own route stops the event loop; here a thread does it.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._lock = asyncio.Lock()
        self._content: bytes | None = None

    async def answer(self, request: Request) -> Response:
        del request
        async with self._lock:
            if self._content is None:
                self._content = await asyncio.to_thread(self._build)
        return BytesResponse(self._content)

    def _build(self) -> bytes:
        return orjson.dumps(self._app.openapi())


def serve_document(app: FastAPI) -> None:
    """Serve the document at FastAPI's path, in place of its own route, and at TEI's."""
    assert app.openapi_url == _PATH, "the pages link to it"
    endpoint = DocumentEndpoint(app)
    routes = [route for route in app.router.routes if not (isinstance(route, Route) and route.path == _PATH)]
    app.router.routes[:] = routes
    for path in (_PATH, _TEI_PATH):
        app.add_route(path, endpoint.answer, include_in_schema=False)


def describe_keys(app: FastAPI) -> None:
    """Declare the API key in the document, as optional security of the routes that check it."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes[_SCHEME] = {"type": "http", "scheme": "bearer"}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if route_label(method.upper(), path) in PROTECTED_ROUTES:
                    operation["security"] = [{_SCHEME: []}, {}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
