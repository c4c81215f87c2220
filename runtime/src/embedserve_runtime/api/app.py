"""Which path leads where, for the serving and for the management port.

Paths are few and fixed, so a dictionary finds them; a request that matches none gets its 404 or 405 as JSON.
"""

from __future__ import annotations

from embedserve_runtime.api.asgi import Answer, Exchange, Receive, Scope, Send
from embedserve_runtime.api.docs_page import docs_routes
from embedserve_runtime.api.endpoint import Endpoint, ErrorStyle, Handler, Surroundings
from embedserve_runtime.api.errors import MethodNotAllowed, RouteNotFound, openai_error, tei_error
from embedserve_runtime.api.health import HealthRoutes
from embedserve_runtime.api.openai import OpenAIRoutes
from embedserve_runtime.api.tei import TeiRoutes

# Metric label of everything that is not one of the routes below; paths of scanners must not become labels.
OTHER = "other"
EMBEDDING_ROUTES = ("/embed", "/v1/embeddings")
ROUTES = (*EMBEDDING_ROUTES, "/info", "/health", "/livez", "/readyz", "/metrics", OTHER)

# HEAD is answered as GET: the HTTP server leaves the body out.
_GET = ("GET", "HEAD")
_POST = ("POST",)


class Application:
    """An ASGI application over fixed paths."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._endpoints: dict[str, dict[str, Endpoint]] = {}
        self._unmatched = Endpoint(OTHER, _not_found, tei_error, around, takes_body=False)

    def add(
        self, path: str, methods: tuple[str, ...], handler: Handler, style: ErrorStyle = tei_error
    ) -> None:
        label = path if path in ROUTES else OTHER
        endpoint = Endpoint(label, handler, style, self._around, takes_body="POST" in methods)
        refuse = Endpoint(label, _refuse(methods), style, self._around, takes_body=False)
        self._endpoints[path] = {"": refuse} | dict.fromkeys(methods, endpoint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        methods = self._endpoints.get(scope["path"])
        endpoint = self._unmatched if methods is None else methods.get(scope["method"]) or methods[""]
        await endpoint(scope, receive, send)


def serving_app(around: Surroundings, served_model_name: str, *, with_probes: bool) -> Application:
    """`with_probes`: no management port carries probes and metrics, so this one does."""
    app = Application(around)
    tei = TeiRoutes(around.readiness, served_model_name)
    openai = OpenAIRoutes(around.readiness, served_model_name)
    health = HealthRoutes(around.readiness, around.metrics)
    app.add("/embed", _POST, tei.embed)
    app.add("/info", _GET, tei.info)
    app.add("/health", _GET, health.health)
    app.add("/v1/embeddings", _POST, openai.embeddings, openai_error)
    for path, handler in docs_routes().items():
        app.add(path, _GET, handler)
    if with_probes:
        _add_probes(app, health)
    return app


def management_app(around: Surroundings) -> Application:
    app = Application(around)
    health = HealthRoutes(around.readiness, around.metrics)
    app.add("/health", _GET, health.health)
    _add_probes(app, health)
    return app


def _add_probes(app: Application, health: HealthRoutes) -> None:
    app.add("/livez", _GET, health.livez)
    app.add("/readyz", _GET, health.readyz)
    app.add("/metrics", _GET, health.metrics)


async def _not_found(_: Exchange) -> Answer:
    raise RouteNotFound("no such path; /docs lists them all")


def _refuse(methods: tuple[str, ...]) -> Handler:
    async def refuse(_: Exchange) -> Answer:
        raise MethodNotAllowed(f"only {' and '.join(methods)} is answered here", methods)

    return refuse
