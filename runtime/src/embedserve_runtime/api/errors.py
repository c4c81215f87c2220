"""Maps error classes to HTTP in one table, and writes errors in the shapes of the dialects."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from embedserve_runtime import errors
from embedserve_runtime.api.routes import Dialect, error_dialect
from embedserve_runtime.errors import EmbedserveError, RequestError


class MalformedBody(RequestError):
    """The body is not JSON at all."""

    reason = "MalformedBody"


class WrongShape(RequestError):
    """The body is JSON, but not of the shape that the route takes."""

    reason = "WrongShape"


class UnsupportedMediaType(RequestError):
    reason = "UnsupportedMediaType"


class UnsupportedEncoding(RequestError):
    """The Content-Encoding of the body is not supported."""

    reason = "UnsupportedEncoding"


class BodyTooLarge(RequestError):
    reason = "BodyTooLarge"


class BodyTimeout(RequestError):
    """The client took too long to send the body."""

    reason = "BodyTimeout"


class CallRefused(RequestError):
    """A call to the management port is not that of the leading operator."""

    reason = "CallRefused"


class RouteNotFound(RequestError):
    reason = "RouteNotFound"


class MethodNotAllowed(RequestError):
    """The path does not have this method. allowed: the methods that it has."""

    reason = "MethodNotAllowed"

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class HttpError:
    """The HTTP answer to a class of errors.

    tei: TEI's `error_type`. openai: OpenAI's `type`. cause: TEI's label of `te_request_failure`.
    """

    status: int
    tei: str
    openai: str
    cause: str


_SUBJECT = re.compile(r"`(?P<field>[a-z_]+)[`.]|input \d+\b")
"""The beginning of a message that names the field, or the input, which is wrong."""
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
    errors.RateLimited: HttpError(429, "Overloaded", "rate_limit_error", "overloaded"),
    errors.DeadlineExceeded: HttpError(504, "Overloaded", "server_error", "overloaded"),
    errors.NotReady: HttpError(503, "Unhealthy", "server_error", "unhealthy"),
    errors.Unauthorized: HttpError(401, "Validation", "authentication_error", "unauthorized"),
    errors.RouteForbidden: HttpError(403, "Validation", "permission_error", "unauthorized"),
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
    CallRefused: HttpError(403, "Validation", "permission_error", "unauthorized"),
    RouteNotFound: HttpError(404, "Validation", _INVALID, "validation"),
    MethodNotAllowed: HttpError(405, "Validation", _INVALID, "validation"),
    # Errors of start-up cannot come up in a request; if one does, it is a bug.
    errors.EmbedserveError: INTERNAL,
}

# A client that disconnected has no error class: nobody receives one.
DISCONNECT_CAUSE = "dropped"
CAUSES = (*sorted({http_error.cause for http_error in TABLE.values()}), DISCONNECT_CAUSE)

# nginx's status for a client that closed the connection; it appears in metrics only.
CLIENT_CLOSED_REQUEST = 499
# Statuses of bytes that were refused before they became a request, or by a library; they have no error class either.
_PROTOCOL_STATUSES = {408, 431}
STATUSES = (
    200,
    *sorted(
        {http_error.status for http_error in TABLE.values()} | _PROTOCOL_STATUSES | {CLIENT_CLOSED_REQUEST}
    ),
)
"""All statuses for which metrics have a series."""
_KNOWN_STATUSES = frozenset(STATUSES)
_STATUS_OF_CLASS = {1: 200, 2: 200, 3: 200, 4: 400, 5: 500}


def choose_counted_status(status: int) -> int:
    """Return the status that metrics count a status as: itself, or the plain one of its class (RFC 9110, section 15).

    Static files are answered with 206, 304 and 416 too, and forwarded requests with what a proxy on the way says.
    """
    return status if status in _KNOWN_STATUSES else _STATUS_OF_CLASS[status // 100]


def find_http_error(error: EmbedserveError) -> HttpError:
    """Return the table's entry for the class, or for its nearest ancestor."""
    return next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)


def write_tei_error(http_error: HttpError, error: EmbedserveError, request_id: str) -> bytes:
    if http_error.status == 401:
        return b""  # as TEI does
    body = {"error": error.message, "error_type": http_error.tei}
    if http_error.status >= 500:
        body["request_id"] = request_id
    return orjson.dumps(body)


def find_param(message: str) -> str | None:
    """Return the field of `/v1/embeddings` that an error's message is about; None where it names none."""
    match = _SUBJECT.match(message)
    return None if match is None else match["field"] or "input"


def write_openai_error(http_error: HttpError, error: EmbedserveError, request_id: str) -> bytes:
    """Write OpenAI's nested shape and the flat one of TEI's OpenAI route: clients read one or the other."""
    nested = {"message": error.message, "type": http_error.openai, "param": None, "code": error.reason}
    if http_error.openai == _INVALID:
        nested["param"] = find_param(error.message)
    if http_error.status >= 500:
        nested["request_id"] = request_id
    flat = {"message": error.message, "code": http_error.status, "type": http_error.tei}
    return orjson.dumps({"error": nested, **flat})


def write_message_error(http_error: HttpError, error: EmbedserveError, request_id: str) -> bytes:
    """Write the shape of Cohere and of the native routes: a message with the precise reason."""
    del http_error
    return orjson.dumps({"message": error.message, "code": error.reason, "id": request_id})


_WRITERS: dict[Dialect, Callable[[HttpError, EmbedserveError, str], bytes]] = {
    "tei": write_tei_error,
    "openai": write_openai_error,
    "message": write_message_error,
}


def error_body(path: str, http_error: HttpError, error: EmbedserveError, request_id: str) -> bytes:
    """Write an error as JSON, in the dialect of its path."""
    return _WRITERS[error_dialect(path)](http_error, error, request_id)


def error_headers(error: EmbedserveError) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that tell a client what to do about an error."""
    if isinstance(error, errors.Overloaded):
        return ((b"retry-after", b"%d" % math.ceil(error.retry_after)),)
    if isinstance(error, errors.Unauthorized):
        return ((b"www-authenticate", b"Bearer"),)
    if isinstance(error, MethodNotAllowed):
        return ((b"allow", ", ".join(error.allowed).encode()),)
    if isinstance(error, BodyTooLarge | BodyTimeout):
        return ((b"connection", b"close"),)  # the rest of the body is not read
    return ()
