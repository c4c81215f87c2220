"""A FastAPI route whose body pydantic reads straight from its bytes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from embedserve_runtime.api.context import get_scope_context, get_server_context
from embedserve_runtime.api.json_limits import check_json_size
from embedserve_runtime.api.schemas.base import ApiModel
from embedserve_runtime.api.schemas.parsing import read_json

HEADER_PARAMETERS: list[dict[str, Any]] = [
    {
        "name": "X-Embedserve-Vector-Space",
        "in": "header",
        "required": False,
        "description": "Identity of the vector space that the client expects; another one gives 409.",
        "schema": {"type": "string", "examples": ["vs2-0123456789abcdef0123"]},
    },
    {
        "name": "X-Embedserve-Timeout",
        "in": "header",
        "required": False,
        "description": "Seconds after which the client wants no answer any more; then 504, at once if too few.",
        "schema": {"type": "number", "exclusiveMinimum": 0, "examples": [2.5]},
    },
]
"""Headers of every route with a body, read by `inputs.read_request_options`."""


class JsonRoute(APIRoute):
    """A FastAPI APIRoute for endpoints `(request: Request, body: SomeModel) -> Response`, or `(request: Request)`.

    What FastAPI does for endpoints of any signature takes 77 of the 107 us of a route (fastapi 0.165, one short text):
    it parses JSON with Python's parser, validates the objects that come of it in lax mode, and opens two exit stacks
    for dependencies with `yield`. Here pydantic parses and validates the bytes in one step, strictly, and the endpoint
    is called with its arguments. The OpenAPI document is FastAPI's own work.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        parameters = [*inspect.signature(endpoint).parameters]
        if parameters not in (["request"], ["request", "body"]):
            raise TypeError(f"{path}: a JsonRoute takes `request` and `body`, not {', '.join(parameters)}")
        model: type[ApiModel] | None = None
        if "body" in parameters:
            extra = settings.pop("openapi_extra", None) or {}
            settings["openapi_extra"] = {"parameters": HEADER_PARAMETERS, **extra}
            model = get_type_hints(endpoint)["body"]
        # Names for the functions of generated clients: no path has two operations in the document.
        settings["operation_id"] = path.strip("/").replace("/", "_") or "default"
        super().__init__(path, endpoint, **settings)
        self.app = _build_application(endpoint, model)


def _build_application(endpoint: Callable[..., Awaitable[Response]], model: type[ApiModel] | None) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        if model is None:
            response = await endpoint(request)
        else:
            context = get_scope_context(scope)
            await check_json_size(context.body, get_server_context(request).json_bounds)
            response = await endpoint(request, read_json(model, context.body))
        await response(scope, receive, send)

    return app
