"""The FastAPI applications: one for the serving ports, one for the management port."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import APIRouter, FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.api.error_response import add_exception_handlers
from embedserve_runtime.api.middleware.body import BodyMiddleware
from embedserve_runtime.api.middleware.client import ClientMiddleware
from embedserve_runtime.api.middleware.compression import CompressionMiddleware
from embedserve_runtime.api.middleware.forwarding import ForwardingMiddleware
from embedserve_runtime.api.middleware.head import HeadMiddleware
from embedserve_runtime.api.middleware.request_context import RequestContextMiddleware
from embedserve_runtime.api.openapi import describe_keys, serve_document
from embedserve_runtime.api.operator_calls import OperatorCalls
from embedserve_runtime.api.routers import (
    cohere,
    health,
    management,
    native,
    openai,
    ranking,
    sagemaker_vertex,
    score,
    tei,
)
from embedserve_runtime.api.routes import MANAGEMENT_WORK, SERVING_WORK
from embedserve_runtime.config import ServerSettings

_SERVING = (
    tei.router,
    openai.router,
    cohere.router,
    ranking.router,
    native.router,
    score.router,
    sagemaker_vertex.router,
    health.health_router,
)
_NO_TELEMETRY = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's telemetry would look up OpenTelemetry providers at each request; ours counts and traces already."""


def create_app(context: ServerContext, settings: ServerSettings) -> FastAPI:
    """Create the application of the serving ports, with probes and metrics unless a management port has them."""
    app: FastAPI = FastAPIOffline(
        title="Embedserve",
        version=tei.VERSION,
        description="Vectors of texts from one embedding model.",
        license_info={"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        middleware=_build_middleware(context, settings),
        redirect_slashes=False,
        telemetry=_NO_TELEMETRY,
        static_url="/docs/static",
    )
    app.state.context = context
    probes = () if settings.management_port is not None else (health.probe_router,)
    _add_routes(app, (*_SERVING, *probes))
    add_exception_handlers(app)
    describe_keys(app)
    serve_document(app)
    return app


def create_management_app(
    context: ServerContext, set_current: Callable[[str], None], operator_calls: OperatorCalls
) -> FastAPI:
    """Create the application of the management port.

    set_current: sets in all front ends which vector space the service's name stands for. operator_calls: says who may.
    """
    app = FastAPI(
        title="Embedserve management",
        openapi_url=None,
        middleware=[
            Middleware(RequestContextMiddleware, server=context, work=MANAGEMENT_WORK),
            Middleware(HeadMiddleware, server=context),
            Middleware(BodyMiddleware, server=context),
        ],
        redirect_slashes=False,
        telemetry=_NO_TELEMETRY,  # type: ignore[arg-type]  # a partial dictionary is taken
    )
    app.state.context = context
    app.state.set_current = set_current
    app.state.operator_calls = operator_calls
    _add_routes(app, (management.router, health.health_router, health.probe_router))
    add_exception_handlers(app)
    return app


def _build_middleware(context: ServerContext, settings: ServerSettings) -> Sequence[Middleware]:
    """Return the middleware from the outside in; `api.middleware` says what each is for."""
    stack: list[Middleware] = []
    if settings.cors_origins:
        # Outside of the errors, so that a browser may read them; preflight requests carry no API key.
        stack.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["*"],
            )
        )
    stack.append(Middleware(RequestContextMiddleware, server=context, work=SERVING_WORK))
    if settings.compress_from_bytes is not None:
        stack.append(Middleware(CompressionMiddleware, min_bytes=settings.compress_from_bytes))
    if settings.space_url is not None:
        stack.append(Middleware(ForwardingMiddleware, server=context, space_url=settings.space_url))
    if context.clients.needs_identity:
        stack.append(Middleware(ClientMiddleware, clients=context.clients))
    stack += [Middleware(HeadMiddleware, server=context), Middleware(BodyMiddleware, server=context)]
    return stack


def _add_routes(app: FastAPI, routers: Sequence[APIRouter]) -> None:
    """Put the routers' routes in front of the application's own.

    `include_router` would nest the routers, and FastAPI would match each request twice through every one of them: 28 us
    of a request that takes 30 in the application (fastapi 0.165).
    """
    app.router.routes[:0] = [route for router in routers for route in router.routes]
