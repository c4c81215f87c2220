"""The HTTPS side: who may ask, what is at which path, and errors in the API's words."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from http import HTTPStatus
from typing import Protocol

from aiohttp import web

from embedserve_operator.adapter import answers
from embedserve_operator.adapter.pages import Page
from embedserve_operator.adapter.questions import (
    METRICS_GROUP,
    METRICS_VERSION,
    ROOT,
    Question,
    read_question,
)
from embedserve_operator.adapter.scraper import Scraper
from embedserve_operator.adapter.targets import Target, target_of
from embedserve_operator.adapter.trust import ClientRules, common_name
from embedserve_operator.errors import (
    ApiError,
    BadQuestionError,
    PodsSilentError,
    QuestionError,
    UnknownMetricError,
)
from embedserve_operator.wire import Manifest, Received

log = logging.getLogger(__name__)

_STATUSES: dict[type[QuestionError], tuple[HTTPStatus, str]] = {
    BadQuestionError: (HTTPStatus.BAD_REQUEST, "BadRequest"),
    UnknownMetricError: (HTTPStatus.NOT_FOUND, "NotFound"),
    PodsSilentError: (HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable"),
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pods(Protocol):
    """Who knows which pods exist."""

    def pod_pages(self, namespace: str, selector: str) -> AsyncIterator[list[Received]]:
        """Pods of a namespace that a label selector admits, as they are now, some at a time."""


class MetricsApi:
    """Answers questions; nothing of it depends on how they came."""

    def __init__(self, pods: Pods, scraper: Scraper, now: Callable[[], datetime]) -> None:
        self._pods = pods
        self._scraper = scraper
        self._now = now

    async def answer(self, question: Question) -> Manifest:
        """The list of values. The pods are listed anew for each question: the autoscaler believes any name."""
        targets: list[Target] = []
        async for page in self._pods.pod_pages(question.namespace, question.pods):
            # Pods are large, and of each only a little is kept.
            targets += [target for pod in page if (target := target_of(pod)) is not None]
        if question.pod is not None:
            targets = [target for target in targets if target.name == question.pod]
        pages: dict[str, Page] = await self._scraper.read(targets)
        return answers.answer(question, targets, pages, self._now().strftime("%Y-%m-%dT%H:%M:%SZ"))


class Doorkeeper:
    """Lets in who the API server's configuration says speaks for it. The certificate's authority has been checked by
    TLS; that alone would let in every other holder of such a certificate, and believe what it says of its user."""

    def __init__(self) -> None:
        self.rules: ClientRules | None = None

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        name = common_name(transport.get_extra_info("peercert")) if transport is not None else None
        if self.rules is None or not self.rules.admit(name):
            log.warning("a client with the certificate of %s was turned away", name)
            return _refused(
                HTTPStatus.UNAUTHORIZED, "Unauthorized", "this is not the API server's certificate"
            )
        return await handler(request)


def application(api: MetricsApi, doorkeeper: Doorkeeper) -> web.Application:
    """All routes of the API."""

    async def ask(request: web.Request) -> web.StreamResponse:
        try:
            # The path as it was sent: a name in it may contain an encoded slash.
            question = read_question(request.rel_url.raw_path, request.query)
            return web.json_response(await api.answer(question))
        except QuestionError as error:
            log.info("%s: %s", request.path_qs, error)
            code, reason = _STATUSES[type(error)]
            return _refused(code, reason, str(error))
        except ApiError as error:
            log.warning("%s: the pods could not be listed: %s", request.path_qs, error)
            return _refused(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable", str(error))

    app = web.Application(middlewares=[doorkeeper.check], client_max_size=2**16)
    for path, document in (
        (ROOT, answers.resource_list()),
        (f"/apis/{METRICS_GROUP}", answers.group()),
        ("/apis", {"kind": "APIGroupList", "apiVersion": "v1", "groups": [answers.group()]}),
        ("/openapi/v2", answers.open_api()),
    ):
        app.router.add_get(path, _telling(document))
    app.router.add_get(f"/apis/{METRICS_GROUP}/{METRICS_VERSION}/{{rest:.+}}", ask)
    return app


class Listener:
    """The open port, and the TLS context behind it."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self._port = port
        self._site: web.TCPSite | None = None
        self.context: ssl.SSLContext | None = None

    async def listen(self, context: ssl.SSLContext) -> None:
        """Serve with this context; what was accepted with another one is finished."""
        before = self._site
        # Two sockets on one port for a moment, so that there is none at which nobody listens.
        self._site = web.TCPSite(self._runner, port=self._port, ssl_context=context, reuse_port=True)
        await self._site.start()
        self.context = context
        if before is not None:
            await before.stop()


def _telling(document: Manifest) -> Handler:
    async def tell(_request: web.Request) -> web.StreamResponse:
        return web.json_response(document)

    return tell


def _refused(code: HTTPStatus, reason: str, message: str) -> web.Response:
    return web.json_response(answers.refusal(code, reason, message), status=code)
