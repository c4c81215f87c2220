"""Passes requests on that come by the service's own name after it has passed to another vector space.

A Service of Kubernetes steers new connections only. One that a client has kept open still leads here, and must not go
on getting the vectors of before. Closing it could cut a request that is on its way; so the next request on it is passed
on to the other space's own name, and its answer is the last on the connection. See docs/model-changes.md.
"""

from __future__ import annotations

import asyncio
import logging

import httpx2
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from embedserve_runtime.api.context import ServerContext, context_in
from embedserve_runtime.api.middleware.body import BodyMiddleware
from embedserve_runtime.api.responses import BytesResponse
from embedserve_runtime.api.routes import FORWARDED, OWN_PATHS
from embedserve_runtime.errors import DeadlineExceeded, NotReady

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 15.0
"""The other space's name may need this long to be known on every node."""
CONNECT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 1.0
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection (RFC 9110, section 7.6.1), and those that are written anew."""
_BODY_HEADERS = frozenset({b"content-encoding"})
"""The body has been unpacked when it is passed on, and its answer comes unpacked."""
_OWN_ANSWER_HEADERS = frozenset({b"date", b"server", b"x-request-id"})
"""Written by this server itself."""


class ForwardingMiddleware:
    """Asks another vector space's own name for the answer, while the service's name stands for that one.

    space_url: base URL of a space's own name, with {space8} in place of the first digits of its identity.
    """

    def __init__(self, app: ASGIApp, server: ServerContext, space_url: str) -> None:
        self._app = app
        self._server = server
        self._space_url = space_url
        self._forward = BodyMiddleware(self._pass_on, server)
        self._client: httpx2.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        space = None if scope["state"].get("is_pinned") else self._server.readiness.forwarding_space()
        if space is None or scope["path"] in OWN_PATHS:
            await self._app(scope, receive, send)
            return
        # Kept for `_pass_on`: the name may pass on once more while the body comes in.
        scope["state"]["forwarded_space"] = space
        context_in(scope).count_as(FORWARDED)
        await self._forward(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises NotReady when nobody answers there, DeadlineExceeded."""
        space = scope["state"]["forwarded_space"]
        timeout = self._server.readiness.service().batching.request_timeout_seconds
        request = Request(scope, receive)
        try:
            async with asyncio.timeout(timeout):
                outgoing = self._outgoing(request, space, context_in(scope).body)
                reply = await _ask_patiently(self._open_client(), outgoing, space)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer within {timeout:g} s from vector space {space}") from error
        headers = [(name.lower(), value) for name, value in reply.headers.raw]
        dropped = _HOP_BY_HOP | _BODY_HEADERS | _OWN_ANSWER_HEADERS | {b"content-type"}
        kept = [header for header in headers if header[0] not in dropped]
        content_type = reply.headers.get("content-type", "application/json").encode("latin-1")
        response = BytesResponse(
            reply.content, reply.status_code, [*kept, (b"connection", b"close")], content_type
        )
        await response(scope, receive, send)

    def _open_client(self) -> httpx2.AsyncClient:
        """Made when it is first needed: most processes never pass anything on."""
        if self._client is None:
            self._client = httpx2.AsyncClient(
                # The time of the whole request is bounded by who waits for it.
                timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
                # Connections are not kept: the next request may be for another space.
                limits=httpx2.Limits(max_keepalive_connections=0),
                # Proxies of the environment are for the world outside of the cluster, and `space_url` has no TLS.
                trust_env=False,
                verify=False,
            )
        return self._client

    def _outgoing(self, request: Request, space: str, body: bytes) -> httpx2.Request:
        """The path goes on as it was written: decoded, a line end in it would end the request line."""
        scope, context = request.scope, context_in(request.scope)
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        url = httpx2.URL(url_of(self._space_url, space)).copy_with(raw_path=target)
        headers = [
            header
            for header in scope["headers"]
            if header[0] not in _HOP_BY_HOP | _BODY_HEADERS | {b"x-request-id", b"accept-encoding"}
        ]
        headers.append((b"x-request-id", context.request_id.encode()))
        headers.append((b"accept-encoding", b"identity"))
        return httpx2.Request(scope["method"], url, headers=headers, content=body)


async def _ask_patiently(client: httpx2.AsyncClient, request: httpx2.Request, space: str) -> httpx2.Response:
    """Asking again does no harm: embedding a text changes nothing."""
    clock = asyncio.get_running_loop().time
    end, pause = clock() + PATIENCE_SECONDS, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await client.send(request)
        except httpx2.TransportError as error:
            if clock() + pause > end:
                log.warning("a request could not be passed on: %s", error)
                raise unreachable(space) from error
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)


def unreachable(space: str) -> NotReady:
    """The error of a request that could not be passed on to `space`."""
    return NotReady(f"this name now stands for vector space {space}, which cannot be reached; try again")


def url_of(space_url: str, space: str) -> str:
    """A template of names with {space8}, for that space."""
    return space_url.format(space8=space.removeprefix("vs1-")[:8])
