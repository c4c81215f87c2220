"""Turns errors into answers, for middleware and as the application's exception handlers."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from embedserve_runtime.api.context import get_scope_context
from embedserve_runtime.api.errors import MethodNotAllowed, RouteNotFound, error_body, error_headers
from embedserve_runtime.api.responses import BytesResponse
from embedserve_runtime.api.routes import find_similar_path
from embedserve_runtime.errors import EmbedserveError


def error_response(error: Exception, scope: Scope) -> Response:
    """Create the answer for an error, in the dialect of the request's path."""
    context = get_scope_context(scope)
    explained, http_error = context.explain(error)
    body = error_body(scope["path"], http_error, explained, context.request_id)
    return BytesResponse(body, http_error.status, error_headers(explained))


def add_exception_handlers(app: FastAPI) -> None:
    """Make the application answer our errors, and Starlette's 404 and 405, in the dialect of the path."""

    async def handle_error(request: Request, error: Exception) -> Response:
        return error_response(error, request.scope)

    async def handle_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_response(_translate_error(request, error), request.scope)

    app.add_exception_handler(EmbedserveError, handle_error)
    app.add_exception_handler(HTTPException, handle_http_exception)


def _translate_error(request: Request, error: HTTPException) -> Exception:
    match error.status_code:
        case 404:
            path = request.scope["path"]
            similar = find_similar_path(path)
            if similar is None:
                hint = "/docs lists them all"
            else:
                hint = "it is served on another port" if similar == path else f"did you mean {similar}?"
            return RouteNotFound(f"no such path; {hint}")
        case 405:
            methods = _list_methods(request.app.routes, request.scope)
            return MethodNotAllowed(f"only {' and '.join(methods)} is answered here", methods)
        case _:
            return error


def _list_methods(routes: list[BaseRoute], scope: Scope) -> tuple[str, ...]:
    """Return the methods of the path, over all of its routes."""
    methods: list[str] = []
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is Match.PARTIAL:
            methods += sorted(route.methods or ())
    return tuple(dict.fromkeys([*methods, *(["HEAD"] if "GET" in methods else [])]))
