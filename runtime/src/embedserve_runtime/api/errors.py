"""The one table from error classes to HTTP, and the shapes in which dialects write an error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from embedserve_runtime import errors
from embedserve_runtime.api.routes import Dialect, dialect_of
from embedserve_runtime.errors import EmbedserveError, RequestError


class MalformedBody(RequestError):
    """The body is not JSON at all."""

    reason = "MalformedBody"


class WrongShape(RequestError):
    """JSON, but not what the route takes."""

    reason = "WrongShape"


class UnsupportedMediaType(RequestError):
    reason = "UnsupportedMediaType"


class UnsupportedEncoding(RequestError):
    """The body's Content-Encoding is not read."""

    reason = "UnsupportedEncoding"


class BodyTooLarge(RequestError):
    reason = "BodyTooLarge"


class BodyTimeout(RequestError):
    """The client took too long to send the body."""

    reason = "BodyTimeout"


class RouteNotFound(RequestError):
    reason = "RouteNotFound"


class MethodNotAllowed(RequestError):
    """`allowed`: the methods that the path has."""

    reason = "MethodNotAllowed"

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class HttpError:
    """How an error class looks outside.

    tei: TEI's `error_type`. openai: OpenAI's `type`. cause: TEI's label of `te_request_failure`.
    """

    status: int
    tei: str
    openai: str
    cause: str


_INVALID = "invalid_request_error"
INTERNAL = HttpError(500, "Backend", "server_error", "inference")

TABLE: dict[type[EmbedserveError], HttpError] = {
    errors.EmptyInput: HttpError(400, "Empty", _INVALID, "validation"),
    errors.InvalidInput: HttpError(422, "Validation", _INVALID, "validation"),
    errors.InputTooLong: HttpError(422, "Validation", _INVALID, "validation"),
    errors.BatchTooLarge: HttpError(422, "Validation", _INVALID, "batch_size"),
    errors.UnknownPrompt: HttpError(422, "Validation", _INVALID, "validation"),
    errors.VectorSpaceMismatch: HttpError(409, "Validation", _INVALID, "validation"),
    errors.Overloaded: HttpError(429, "Overloaded", "rate_limit_error", "overloaded"),
    errors.DeadlineExceeded: HttpError(504, "Overloaded", "server_error", "overloaded"),
    errors.NotReady: HttpError(503, "Unhealthy", "server_error", "unhealthy"),
    errors.Unauthorized: HttpError(401, "Validation", "authentication_error", "unauthorized"),
    errors.WrongModelKind: HttpError(424, "Backend", _INVALID, "model_type"),
    errors.EngineFailure: INTERNAL,
    errors.NotFinite: HttpError(500, "Backend", "server_error", "missing_values"),
    errors.RequestError: HttpError(400, "Validation", _INVALID, "validation"),
    MalformedBody: HttpError(400, "Validation", _INVALID, "validation"),
    WrongShape: HttpError(422, "Validation", _INVALID, "validation"),
    UnsupportedMediaType: HttpError(415, "Validation", _INVALID, "validation"),
    UnsupportedEncoding: HttpError(415, "Validation", _INVALID, "validation"),
    BodyTooLarge: HttpError(413, "Validation", _INVALID, "validation"),
    BodyTimeout: HttpError(408, "Validation", _INVALID, "validation"),
    RouteNotFound: HttpError(404, "Validation", _INVALID, "validation"),
    MethodNotAllowed: HttpError(405, "Validation", _INVALID, "validation"),
    # Errors of start-up cannot come up in a request; if one does, it is a bug.
    errors.EmbedserveError: INTERNAL,
}

# Clients that went away have no error class: nobody receives one.
GONE_CAUSE = "dropped"
CAUSES = (*sorted({http_error.cause for http_error in TABLE.values()}), GONE_CAUSE)

# nginx's number for a client that closed the connection; it appears in metrics only, nobody receives it.
CLIENT_GONE = 499
# Of bytes that were refused before they became a request, or by a library: they have no error class either.
_REFUSED = {408, 431}
STATUSES = (200, *sorted({http_error.status for http_error in TABLE.values()} | _REFUSED | {CLIENT_GONE}))
"""Every status that metrics have a series for."""


def http_error_of(error: EmbedserveError) -> HttpError:
    """The entry of the class, or of its nearest ancestor."""
    return next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)


def tei_error(http_error: HttpError, error: EmbedserveError, request_id: str) -> bytes:
    if http_error.status == 401:
        return b""  # as TEI does
    body = {"error": error.message, "error_type": http_error.tei}
    if http_error.status >= 500:
        body["request_id"] = request_id
    return orjson.dumps(body)


def openai_error(http_error: HttpError, error: EmbedserveError, request_id: str) -> bytes:
    """OpenAI's nested shape, and beside it the flat one of TEI's OpenAI route: clients read one or the other."""
    nested = {"message": error.message, "type": http_error.openai, "param": None, "code": error.reason}
    if http_error.status >= 500:
        nested["request_id"] = request_id
    flat = {"message": error.message, "code": http_error.status, "type": http_error.tei}
    return orjson.dumps({"error": nested, **flat})


def message_error(http_error: HttpError, error: EmbedserveError, request_id: str) -> bytes:
    """Cohere's shape, and that of the native routes: a message; the precise reason beside it."""
    del http_error
    return orjson.dumps({"message": error.message, "code": error.reason, "id": request_id})


_WRITERS: dict[Dialect, Callable[[HttpError, EmbedserveError, str], bytes]] = {
    "tei": tei_error,
    "openai": openai_error,
    "message": message_error,
}


def error_body(path: str, http_error: HttpError, error: EmbedserveError, request_id: str) -> bytes:
    """The JSON of an error, in the dialect of the path that it came up on."""
    return _WRITERS[dialect_of(path)](http_error, error, request_id)


def error_headers(error: EmbedserveError) -> tuple[tuple[bytes, bytes], ...]:
    """Headers that tell a client what to do about an error."""
    if isinstance(error, errors.Overloaded):
        return ((b"retry-after", b"%d" % math.ceil(error.retry_after)),)
    if isinstance(error, errors.Unauthorized):
        return ((b"www-authenticate", b"Bearer"),)
    if isinstance(error, MethodNotAllowed):
        return ((b"allow", ", ".join(error.allowed).encode()),)
    if isinstance(error, BodyTooLarge | BodyTimeout):
        return ((b"connection", b"close"),)  # the rest of the body is not read
    return ()
