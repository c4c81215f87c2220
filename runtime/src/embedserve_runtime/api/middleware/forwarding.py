"""Forwards requests to the service once its Service has switched to another vector space.

A Kubernetes Service routes new connections only. A connection that a client has kept open still leads here, but must
not get vectors of this space any more. Closing it could cut off a request in transit; so the next request on it
is forwarded to the other space's own name, and its answer is the last on the connection. See docs/model-changes.md.
"""

from __future__ import annotations

import asyncio
import logging

import httpx2
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from embedserve_runtime.api.context import ServerContext, get_scope_context
from embedserve_runtime.api.middleware.body import BodyMiddleware
from embedserve_runtime.api.responses import BytesResponse
from embedserve_runtime.api.routes import FORWARDED, NEVER_FORWARDED_PATHS
from embedserve_runtime.errors import DeadlineExceeded, NotReady

log = logging.getLogger(__name__)

MAX_RETRY_SECONDS = 15.0
"""The time that the other space's name may need to be known on every node."""
CONNECT_TIMEOUT_SECONDS = 5.0
_FIRST_RETRY_PAUSE_SECONDS = 0.05
_MAX_RETRY_PAUSE_SECONDS = 1.0
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
"""Headers of one connection (RFC 9110, section 7.6.1), and headers that are set again."""
_BODY_HEADERS = frozenset({b"content-encoding"})
"""The body has been decompressed when it is forwarded, and its answer is not compressed."""
_OWN_ANSWER_HEADERS = frozenset({b"date", b"server", b"x-request-id"})
"""Headers that this server sets itself."""


class ForwardingMiddleware:
    """Forwards requests to the Service of another vector space while the service has switched to it.

    space_url: base URL of a space's own name, with {space8} in place of the first digits of its identity.
    """

    def __init__(self, app: ASGIApp, server: ServerContext, space_url: str) -> None:
        self._app = app
        self._server = server
        self._space_url = space_url
        self._forward_with_body = BodyMiddleware(self._forward_request, server)
        self._client: httpx2.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        space = None if scope["state"].get("by_space_name") else self._server.readiness.forwarding_space()
        if space is None or scope["path"] in NEVER_FORWARDED_PATHS:
            await self._app(scope, receive, send)
            return
        # Stored for `_forward_request`: the name may move again while the body arrives.
        scope["state"]["forwarded_space"] = space
        get_scope_context(scope).count_as(FORWARDED)
        await self._forward_with_body(scope, receive, send)

    async def _forward_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request whose body has been read. Raises NotReady when nobody answers there, DeadlineExceeded."""
        space = scope["state"]["forwarded_space"]
        timeout = self._server.readiness.service().batching.request_timeout_seconds
        request = Request(scope, receive)
        try:
            async with asyncio.timeout(timeout):
                outgoing = self._build_request(request, space, get_scope_context(scope).body)
                reply = await _send_with_retries(self._open_client(), outgoing, space)
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
        """Create the client when it is first needed: most processes never forward a request."""
        if self._client is None:
            self._client = httpx2.AsyncClient(
                # The time of the whole request is bounded by the caller.
                timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_SECONDS),
                # Connections are not kept open: the next request may be for another space.
                limits=httpx2.Limits(max_keepalive_connections=0),
                # Proxies of the environment are for hosts outside of the cluster, and `space_url` has no TLS.
                trust_env=False,
                verify=False,
            )
        return self._client

    def _build_request(self, request: Request, space: str, body: bytes) -> httpx2.Request:
        """Build the request to the other space. Its path stays encoded: a decoded line break would end the request
        line."""
        scope, context = request.scope, get_scope_context(request.scope)
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        url = httpx2.URL(build_space_address(self._space_url, space)).copy_with(raw_path=target)
        headers = [
            header
            for header in scope["headers"]
            if header[0] not in _HOP_BY_HOP | _BODY_HEADERS | {b"x-request-id", b"accept-encoding"}
        ]
        headers.append((b"x-request-id", context.request_id.encode()))
        headers.append((b"accept-encoding", b"identity"))
        return httpx2.Request(scope["method"], url, headers=headers, content=body)


async def _send_with_retries(
    client: httpx2.AsyncClient, request: httpx2.Request, space: str
) -> httpx2.Response:
    """Send a request with retries, which are safe: embedding a text changes nothing. Raises NotReady."""
    clock = asyncio.get_running_loop().time
    end, pause = clock() + MAX_RETRY_SECONDS, _FIRST_RETRY_PAUSE_SECONDS
    while True:
        try:
            return await client.send(request)
        except httpx2.TransportError as error:
            if clock() + pause > end:
                log.warning("a request could not be passed on: %s", error)
                raise unreachable_space_error(space) from error
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MAX_RETRY_PAUSE_SECONDS)


def unreachable_space_error(space: str) -> NotReady:
    """Create the error of a request that could not be forwarded to `space`."""
    return NotReady(f"this name now stands for vector space {space}, which cannot be reached; try again")


def build_space_address(space_url: str, space: str) -> str:
    """Fill in the {space8} of an address template, the first eight digits of that space."""
    return space_url.format(space8=space.partition("-")[2][:8])
