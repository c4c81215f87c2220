"""Requests that come in by the service's own name after it has passed to another vector space.

A Service of Kubernetes steers new connections only. One that a client has kept open still leads here, and must not go
on getting the vectors of before. Closing it could cut a request that is on its way; so the next request on it is passed
on to the other space's own name, and its answer is the last on the connection. See docs/model-changes.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

from embedserve_runtime.api.asgi import JSON, Answer, Exchange, Receive, Scope, Send
from embedserve_runtime.api.endpoint import Endpoint, Surroundings
from embedserve_runtime.api.errors import message_error
from embedserve_runtime.api.peers import Place, Reply, Request, Unanswered, ask
from embedserve_runtime.api.quick import Abandon, QuickRoute
from embedserve_runtime.api.quick import Reply as QuickReply
from embedserve_runtime.errors import DeadlineExceeded, NotReady

log = logging.getLogger(__name__)

# Label in metrics and logs.
FORWARDED = "forwarded"
# About this process, whatever the service's name stands for.
_OWN_PATHS = frozenset({"/health", "/ping", "/livez", "/readyz", "/metrics"})
# The other space's name may need this long to be known on every node.
PATIENCE_SECONDS = 15.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
# Said by this process itself.
_OWN_HEADERS = frozenset({b"content-type", b"date", b"x-request-id"})


class App(Protocol):
    @property
    def quick(self) -> Mapping[bytes, QuickRoute]: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Forwarding:
    """The application, as those see it who come by the service's name.

    space_url: base URL of a space's own name, with {space8} in place of the first digits of its identity.
    """

    def __init__(self, app: App, around: Surroundings, space_url: str) -> None:
        self._app = app
        self._around = around
        self._space_url = space_url
        self.quick = {target: self._unless_elsewhere(route) for target, route in app.quick.items()}

    def _unless_elsewhere(self, route: QuickRoute) -> QuickRoute:
        readiness = self._around.readiness

        def answer(headers: Mapping[bytes, bytes], body: bytes, reply: QuickReply) -> Abandon | None:
            return None if readiness.elsewhere() is not None else route(headers, body, reply)

        return answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        space = self._around.readiness.elsewhere()
        if space is None or scope["path"] in _OWN_PATHS:
            await self._app(scope, receive, send)
            return
        handler = partial(self._pass_on, scope, space)
        endpoint = Endpoint(FORWARDED, handler, message_error, self._around, takes_body=True, is_open=True)
        await endpoint(scope, receive, send)

    async def _pass_on(self, scope: Scope, space: str, exchange: Exchange) -> Answer:
        """Raises NotReady when nobody answers there, DeadlineExceeded."""
        target = scope["path"].encode() + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        headers = {**exchange.headers, b"x-request-id": exchange.request_id.encode()}
        request = Request(scope["method"], target, headers.items(), exchange.body)
        timeout = self._around.readiness.service().batching.request_timeout_seconds
        try:
            async with asyncio.timeout(timeout):
                reply = await _ask_patiently(place_of(self._space_url, space), request, space)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer within {timeout:g} s from vector space {space}") from error
        content_type = next((value for name, value in reply.headers if name == b"content-type"), JSON)
        kept = tuple(header for header in reply.headers if header[0] not in _OWN_HEADERS)
        return Answer(reply.body, content_type, reply.status, (*kept, (b"connection", b"close")))


async def _ask_patiently(place: Place, request: Request, space: str) -> Reply:
    """Asking again does no harm: embedding a text changes nothing."""
    clock = asyncio.get_running_loop().time
    end, pause = clock() + PATIENCE_SECONDS, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await ask(place, request)
        except Unanswered as error:
            if clock() + pause > end:
                log.warning("a request could not be passed on: %s", error)
                raise NotReady(
                    f"this name now stands for vector space {space}, which cannot be reached; try again"
                ) from error
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def place_of(space_url: str, space: str) -> Place:
    """Where a space's own name leads."""
    url = urlsplit(in_place(space_url, space))
    return Place(url.hostname or "", url.port or 80)


def in_place(template: str, space: str) -> str:
    """A template of names with {space8}, for that space."""
    return template.format(space8=space.removeprefix("vs1-")[:8])
