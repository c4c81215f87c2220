"""Compresses answers if the client accepts it."""

from __future__ import annotations

import math

from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipResponder, IdentityResponder
from starlette.types import ASGIApp, Receive, Scope, Send


class CompressionMiddleware:
    """Starlette's gzip, for requests whose Accept-Encoding takes it.

    Its GZipMiddleware looks for the letters "gzip" anywhere in the header, and so compresses for a client that refuses
    it with `gzip;q=0` (RFC 9110, section 12.5.3).

    min_bytes: the size from which answers are compressed.
    """

    def __init__(self, app: ASGIApp, min_bytes: int) -> None:
        self._app = app
        self._min_bytes = min_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if accepts_gzip(Headers(scope=scope).get("accept-encoding", "")):
            # Level 1: vectors are random bits, of which higher levels save no more.
            await GZipResponder(self._app, self._min_bytes, compresslevel=1)(scope, receive, send)
        else:
            await IdentityResponder(self._app, self._min_bytes)(scope, receive, send)


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the value of an Accept-Encoding header names gzip with a weight above 0."""
    for part in accept_encoding.lower().split(","):
        coding, *parameters = (field.strip() for field in part.split(";"))
        if coding == "gzip":
            return all(_parse_weight(parameter) > 0 for parameter in parameters)
    return False


def _parse_weight(parameter: str) -> float:
    """Return the weight of a parameter like "q=0.5"; 0 for anything else."""
    name, _, value = parameter.partition("=")
    try:
        weight = float(value)
    except ValueError:
        return 0.0
    return weight if name.strip() == "q" and math.isfinite(weight) else 0.0
