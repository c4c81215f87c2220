"""Forwards requests to the service once its Service has switched to another vector space.

A Kubernetes Service routes new connections only. A connection that a client has kept open still leads here, but must
not get vectors of this space any more. Closing it could cut off a request in transit; so the next request on it
is forwarded to the other space's own name, and its answer is the last on the connection. See docs/model-changes.md.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from embedserve_runtime.api.context import ServerContext, get_scope_context
from embedserve_runtime.api.middleware.body import BodyMiddleware
from embedserve_runtime.api.responses import BytesResponse
from embedserve_runtime.api.routes import FORWARDED, NEVER_FORWARDED_PATHS
from embedserve_runtime.errors import DeadlineExceeded, NotReady

if TYPE_CHECKING:
    from embedserve_runtime.api.middleware.space_client import SpaceClient

MAX_RETRY_SECONDS = 15.0
"""The time that the other space's name may need to be known on every node."""
HOP_BY_HOP = frozenset(
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
BODY_HEADERS = frozenset({b"content-encoding"})
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
        self._client: SpaceClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        space = (
            None if scope["state"].get("by_space_name") else self._server.readiness.find_forwarding_space()
        )
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
        try:
            async with asyncio.timeout(timeout):
                if self._client is None:
                    # On a thread, as its import would hold up the event loop.
                    self._client = await asyncio.to_thread(_open_client, self._space_url)
                reply = await self._client.send(scope, space)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer within {timeout:g} s from vector space {space}") from error
        headers = [(name.lower(), value) for name, value in reply.headers.raw]
        dropped = HOP_BY_HOP | BODY_HEADERS | _OWN_ANSWER_HEADERS | {b"content-type"}
        forwarded = [header for header in headers if header[0] not in dropped]
        content_type = reply.headers.get("content-type", "application/json").encode("latin-1")
        response = BytesResponse(
            reply.content, reply.status_code, [*forwarded, (b"connection", b"close")], content_type
        )
        await response(scope, receive, send)


def _open_client(space_url: str) -> SpaceClient:
    from embedserve_runtime.api.middleware.space_client import SpaceClient

    return SpaceClient(space_url)


def unreachable_space_error(space: str) -> NotReady:
    """Create the error of a request that could not be forwarded to `space`."""
    return NotReady(f"this name now stands for vector space {space}, which cannot be reached; try again")


def build_space_address(space_url: str, space: str) -> str:
    """Fill in the {space8} of an address template, the first eight digits of that space."""
    return space_url.format(space8=space.partition("-")[2][:8])
