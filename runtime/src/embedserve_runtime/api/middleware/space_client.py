"""Sends requests to another vector space's own name, over HTTP.

Imported when the first request is forwarded: its HTTP library takes 0.15 s to import, and most processes never forward
one.
"""

from __future__ import annotations

import asyncio
import logging

import httpx2
from starlette.types import Scope

from embedserve_runtime.api.context import get_scope_context
from embedserve_runtime.api.middleware.forwarding import (
    BODY_HEADERS,
    HOP_BY_HOP,
    MAX_RETRY_SECONDS,
    build_space_address,
    unreachable_space_error,
)

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_SECONDS = 5.0
_FIRST_RETRY_PAUSE_SECONDS = 0.05
_MAX_RETRY_PAUSE_SECONDS = 1.0


class SpaceClient:
    """An HTTP client of other vector spaces. space_url: their address, with {space8} in it."""

    def __init__(self, space_url: str) -> None:
        self._space_url = space_url
        self._client = httpx2.AsyncClient(
            # The time of the whole request is bounded by the caller.
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_SECONDS),
            # Connections are not kept open: the next request may be for another space.
            limits=httpx2.Limits(max_keepalive_connections=0),
            # Proxies of the environment are for hosts outside of the cluster, and `space_url` has no TLS.
            trust_env=False,
            verify=False,
        )

    async def send(self, scope: Scope, space: str) -> httpx2.Response:
        """Send the request of a scope, whose body has been read, to `space`.

        Retries are safe: embedding a text changes nothing. Raises NotReady.
        """
        request = self._build_request(scope, space)
        clock = asyncio.get_running_loop().time
        end, pause = clock() + MAX_RETRY_SECONDS, _FIRST_RETRY_PAUSE_SECONDS
        while True:
            try:
                return await self._client.send(request)
            except httpx2.TransportError as error:
                if clock() + pause > end:
                    log.warning("a request could not be passed on: %s", error)
                    raise unreachable_space_error(space) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_PAUSE_SECONDS)

    def _build_request(self, scope: Scope, space: str) -> httpx2.Request:
        """Build the request to the other space. Its path stays encoded: a decoded line break would end the request
        line."""
        context = get_scope_context(scope)
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        url = httpx2.URL(build_space_address(self._space_url, space)).copy_with(raw_path=target)
        headers = [
            header
            for header in scope["headers"]
            if header[0] not in HOP_BY_HOP | BODY_HEADERS | {b"x-request-id", b"accept-encoding"}
        ]
        headers.append((b"x-request-id", context.request_id.encode()))
        headers.append((b"accept-encoding", b"identity"))
        return httpx2.Request(scope["method"], url, headers=headers, content=context.body)
