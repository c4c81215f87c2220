"""Which path leads where, for the serving and for the management port.

Paths are few and fixed, so a dictionary finds them; a request that matches none gets its 404 or 405 as JSON.
"""

from __future__ import annotations

from collections.abc import Callable

from embedserve_runtime.api.asgi import Answer, Exchange, Receive, Scope, Send
from embedserve_runtime.api.cohere import CohereRoutes
from embedserve_runtime.api.docs_page import docs_routes
from embedserve_runtime.api.endpoint import Endpoint, ErrorStyle, Handler, Surroundings
from embedserve_runtime.api.errors import (
    MethodNotAllowed,
    RouteNotFound,
    message_error,
    openai_error,
    tei_error,
)
from embedserve_runtime.api.forwarding import FORWARDED
from embedserve_runtime.api.health import HealthRoutes
from embedserve_runtime.api.management import ManagementRoutes
from embedserve_runtime.api.native import NativeRoutes
from embedserve_runtime.api.openai import OpenAIRoutes
from embedserve_runtime.api.platforms import PlatformRoutes
from embedserve_runtime.api.quick import Ask, QuickEndpoint, in_task
from embedserve_runtime.api.ranking import RankingRoutes
from embedserve_runtime.api.score import ScoreRoutes
from embedserve_runtime.api.tei import TeiRoutes, ask_embed

# Metric label of everything that is not one of the routes below; paths of scanners must not become labels.
OTHER = "other"
EMBEDDING_ROUTES = (
    "/",
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/predict",
    "/rerank",
    "/similarity",
    "/v1/embeddings",
    "/v1/encode",
    "/v1/rerank",
    "/v1/score",
    "/v2/embed",
    "/v2/rerank",
    "/vertex",
)
MANAGEMENT_ROUTES = ("/current", "/selfcheck")
ROUTES = (
    *EMBEDDING_ROUTES,
    "/tokenize",
    "/decode",
    "/v1/models",
    "/info",
    "/health",
    "/livez",
    "/readyz",
    "/metrics",
    *MANAGEMENT_ROUTES,
    FORWARDED,
    OTHER,
)

# What gRPC calls are counted as: by their service, not by method.
RPC_EMBEDDING_SERVICES = ("embedserve.v1.Embeddings", "tei.v1.Embed", "tei.v1.Predict", "tei.v1.Rerank")
RPC_SERVICES = (*RPC_EMBEDDING_SERVICES, "tei.v1.Info", "tei.v1.Tokenize")

# HEAD is answered as GET: the HTTP server leaves the body out.
_GET = ("GET", "HEAD")
_POST = ("POST",)
_PUT = ("PUT",)
_WITH_BODY = frozenset((*_POST, *_PUT))


class Application:
    """An ASGI application over fixed paths."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self.quick: dict[bytes, QuickEndpoint] = {}
        self._endpoints: dict[str, dict[str, Endpoint]] = {}
        self._unmatched = Endpoint(OTHER, _not_found, tei_error, around, takes_body=False, is_open=True)

    def add(
        self,
        path: str,
        methods: tuple[str, ...],
        handler: Handler,
        style: ErrorStyle = tei_error,
        *,
        label: str | None = None,
        is_open: bool = False,
    ) -> None:
        """Answer `methods` at `path`, beside others that it may have. `label`: the route that this is an alias of."""
        label = label or (path if path in ROUTES else OTHER)
        takes_body = not _WITH_BODY.isdisjoint(methods)
        endpoint = Endpoint(label, handler, style, self._around, takes_body=takes_body, is_open=is_open)
        known = self._endpoints.setdefault(path, {})
        known.update(dict.fromkeys(methods, endpoint))
        allowed = tuple(method for method in known if method)
        known[""] = Endpoint(label, _refuse(allowed), style, self._around, takes_body=False, is_open=True)

    def add_query(self, path: str, ask: Ask, style: ErrorStyle, *, label: str | None = None) -> None:
        """Answer a POST by one query, small ones without a task."""
        self.add(path, _POST, in_task(self._around.readiness, ask), style, label=label)
        self.quick[path.encode()] = QuickEndpoint(label or path, ask, style, self._around)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        methods = self._endpoints.get(scope["path"])
        endpoint = self._unmatched if methods is None else methods.get(scope["method"]) or methods[""]
        await endpoint(scope, receive, send)


def serving_app(around: Surroundings, served_model_name: str, *, with_probes: bool) -> Application:
    """`with_probes`: no management port carries probes and metrics, so this one does."""
    app = Application(around)
    tei = TeiRoutes(around.readiness, served_model_name, around.http_workers)
    health = HealthRoutes(around.readiness, around.page)
    posts = {
        "/embed_all": tei.embed_all,
        "/embed_sparse": tei.embed_sparse,
        "/predict": tei.predict,
        "/rerank": tei.rerank,
        "/similarity": tei.similarity,
        "/tokenize": tei.tokenize,
        "/decode": tei.decode,
    }
    for path, post in posts.items():
        app.add(path, _POST, post)
    app.add_query("/embed", ask_embed, tei_error)
    app.add("/info", _GET, tei.info)
    _add_platforms(app, PlatformRoutes(around.readiness, tei))
    _add_other_dialects(app, around, served_model_name)
    app.add("/health", _GET, health.health, is_open=True)
    for alias in ("/", "/ping"):
        app.add(alias, _GET, health.health, label="/health", is_open=True)
    for path, handler in docs_routes().items():
        app.add(path, _GET, handler, is_open=True)
    if with_probes:
        _add_probes(app, health)
    return app


def _add_platforms(app: Application, platforms: PlatformRoutes) -> None:
    app.add("/", _POST, platforms.default)
    app.add("/invocations", _POST, platforms.default, label="/")
    app.add("/vertex", _POST, platforms.vertex)


def _add_other_dialects(app: Application, around: Surroundings, served_model_name: str) -> None:
    openai = OpenAIRoutes(around.readiness, served_model_name)
    app.add_query("/v1/embeddings", openai.ask_embeddings, openai_error)
    app.add_query("/embeddings", openai.ask_embeddings, openai_error, label="/v1/embeddings")
    app.add("/v1/models", _GET, openai.models, openai_error)
    app.add(f"/v1/models/{served_model_name}", _GET, openai.model, openai_error, label="/v1/models")
    app.add("/v2/embed", _POST, CohereRoutes(around.readiness).embed, message_error)
    ranking = RankingRoutes(around.readiness, served_model_name)
    app.add("/v1/rerank", _POST, ranking.rerank("1"), message_error)
    app.add("/v2/rerank", _POST, ranking.rerank("2"), message_error)
    native = NativeRoutes(around.readiness, served_model_name)
    app.add("/v1/encode", _POST, native.encode, message_error)
    app.add("/v1/score", _POST, ScoreRoutes(around.readiness, served_model_name).score, message_error)


def management_app(around: Surroundings, set_current: Callable[[str], None]) -> Application:
    """set_current: tell all that answer requests which vector space the service's name stands for."""
    app = Application(around)
    management = ManagementRoutes(around.readiness, set_current)
    app.add("/selfcheck", _GET, management.selfcheck, is_open=True)
    app.add("/current", _GET, management.get_current, is_open=True)
    app.add("/current", _PUT, management.put_current, is_open=True)
    health = HealthRoutes(around.readiness, around.page)
    app.add("/health", _GET, health.health, is_open=True)
    _add_probes(app, health)
    return app


def _add_probes(app: Application, health: HealthRoutes) -> None:
    app.add("/livez", _GET, health.livez, is_open=True)
    app.add("/readyz", _GET, health.readyz, is_open=True)
    app.add("/metrics", _GET, health.metrics, is_open=True)


async def _not_found(_: Exchange) -> Answer:
    raise RouteNotFound("no such path; /docs lists them all")


def _refuse(methods: tuple[str, ...]) -> Handler:
    async def refuse(_: Exchange) -> Answer:
        raise MethodNotAllowed(f"only {' and '.join(methods)} is answered here", methods)

    return refuse
