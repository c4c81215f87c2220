"""Serves HTTPS: it says who may ask, what each path returns, and how errors are expressed."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from http import HTTPStatus
from typing import Protocol

from aiohttp import web

from embedserve_operator.adapter import responses
from embedserve_operator.adapter.metrics_page import MetricsPage
from embedserve_operator.adapter.queries import METRICS_GROUP, METRICS_VERSION, ROOT, MetricQuery, parse_query
from embedserve_operator.adapter.scraper import Scraper
from embedserve_operator.adapter.targets import ScrapeTarget, read_target
from embedserve_operator.adapter.trust import RequestHeaderConfig, read_common_name
from embedserve_operator.errors import (
    ApiError,
    InvalidMetricQueryError,
    MetricQueryError,
    PodsUnresponsiveError,
    UnknownMetricError,
)
from embedserve_operator.kube.objects import Manifest, Received
from embedserve_operator.kube.views.pods import Pod

log = logging.getLogger(__name__)

_STATUSES: dict[type[MetricQueryError], tuple[HTTPStatus, str]] = {
    InvalidMetricQueryError: (HTTPStatus.BAD_REQUEST, "BadRequest"),
    UnknownMetricError: (HTTPStatus.NOT_FOUND, "NotFound"),
    PodsUnresponsiveError: (HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable"),
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PodLister(Protocol):
    """Lists the pods that exist."""

    def list_pod_pages(self, namespace: str, selector: str) -> AsyncIterator[tuple[Received, ...]]:
        """Yield the pods of a namespace that a label selector matches, as they are now, some at a time."""


class MetricsApi:
    """Answers metric queries, independently of how they arrived."""

    def __init__(self, pods: PodLister, scraper: Scraper, now: Callable[[], datetime]) -> None:
        self._pods = pods
        self._scraper = scraper
        self._now = now

    async def handle_query(self, query: MetricQuery) -> Manifest:
        """Return the list of values.

        The pods are listed again for each query, since the autoscaler believes any name.
        """
        targets: list[ScrapeTarget] = []
        async for page in self._pods.list_pod_pages(query.namespace, query.pod_selector):
            # Pods are large, so only a little of each one is kept.
            targets += [target for pod in page if (target := read_target(Pod.parse(pod))) is not None]
        if query.pod_name is not None:
            targets = [target for target in targets if target.name == query.pod_name]
        pages: dict[str, MetricsPage] = await self._scraper.scrape(targets)
        return responses.build_metric_values(
            query, targets, pages, self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        )


class FrontProxyAuthenticator:
    """Admits only clients that the API server's configuration names as its front proxy.

    TLS has checked the authority of the certificate. That alone would admit every other holder of such a
    certificate, and believe what it says about its user.
    """

    def __init__(self) -> None:
        self.config: RequestHeaderConfig | None = None

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        name = read_common_name(transport.get_extra_info("peercert")) if transport is not None else None
        if self.config is None or not self.config.allows(name):
            log.warning("a client with the certificate of %s was turned away", name)
            return _build_error_response(
                HTTPStatus.UNAUTHORIZED, "Unauthorized", "this is not the API server's certificate"
            )
        return await handler(request)


def build_application(api: MetricsApi, authenticator: FrontProxyAuthenticator) -> web.Application:
    """Return the application with all routes of the API."""

    async def handle_request(request: web.Request) -> web.StreamResponse:
        try:
            # The path is read as it was sent, since a name in it may contain an encoded slash.
            query = parse_query(request.rel_url.raw_path, request.query)
            return web.json_response(await api.handle_query(query))
        except MetricQueryError as error:
            log.info("%s: %s", request.path_qs, error)
            code, reason = _STATUSES[type(error)]
            return _build_error_response(code, reason, str(error))
        except ApiError as error:
            log.warning("%s: the pods could not be listed: %s", request.path_qs, error)
            return _build_error_response(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable", str(error))

    app = web.Application(middlewares=[authenticator.check], client_max_size=2**16)
    for path, document in (
        (ROOT, responses.build_resource_list()),
        (f"/apis/{METRICS_GROUP}", responses.build_group()),
        ("/apis", {"kind": "APIGroupList", "apiVersion": "v1", "groups": [responses.build_group()]}),
        ("/openapi/v2", responses.build_open_api()),
    ):
        app.router.add_get(path, _serve_document(document))
    app.router.add_get(f"/apis/{METRICS_GROUP}/{METRICS_VERSION}/{{rest:.+}}", handle_request)
    return app


class TlsListener:
    """The open port with its TLS context."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self._port = port
        self._site: web.TCPSite | None = None
        self.context: ssl.SSLContext | None = None

    async def listen(self, context: ssl.SSLContext) -> None:
        """Serve with this context; connections that were accepted with the previous one are finished."""
        before = self._site
        # Two sockets share the port for a moment, so that somebody is always listening.
        self._site = web.TCPSite(self._runner, port=self._port, ssl_context=context, reuse_port=True)
        await self._site.start()
        self.context = context
        if before is not None:
            await before.stop()


def _serve_document(document: Manifest) -> Handler:
    async def serve(_request: web.Request) -> web.StreamResponse:
        return web.json_response(document)

    return serve


def _build_error_response(code: HTTPStatus, reason: str, message: str) -> web.Response:
    return web.json_response(responses.build_error(code, reason, message), status=code)
