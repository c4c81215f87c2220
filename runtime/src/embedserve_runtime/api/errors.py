"""The one table from error classes to HTTP, and the two shapes in which dialects write an error."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from embedserve_runtime import errors
from embedserve_runtime.errors import EmbedserveError, RequestError


class MalformedBody(RequestError):
    """The body is not JSON at all."""

    reason = "MalformedBody"


class WrongShape(RequestError):
    """JSON, but not what the route takes."""

    reason = "WrongShape"


class UnsupportedMediaType(RequestError):
    reason = "UnsupportedMediaType"


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
class Wire:
    """How an error class looks outside. tei: TEI's `error_type`; openai: OpenAI's `type`."""

    status: int
    tei: str
    openai: str


_INVALID = "invalid_request_error"
INTERNAL = Wire(500, "Backend", "server_error")

TABLE: dict[type[EmbedserveError], Wire] = {
    errors.EmptyInput: Wire(400, "Empty", _INVALID),
    errors.InvalidInput: Wire(422, "Validation", _INVALID),
    errors.InputTooLong: Wire(422, "Validation", _INVALID),
    errors.BatchTooLarge: Wire(422, "Validation", _INVALID),
    errors.UnknownPrompt: Wire(422, "Validation", _INVALID),
    errors.VectorSpaceMismatch: Wire(409, "Validation", _INVALID),
    errors.Overloaded: Wire(429, "Overloaded", "rate_limit_error"),
    errors.DeadlineExceeded: Wire(504, "Overloaded", "server_error"),
    errors.NotReady: Wire(503, "Unhealthy", "server_error"),
    errors.EngineFailure: INTERNAL,
    errors.RequestError: Wire(400, "Validation", _INVALID),
    MalformedBody: Wire(400, "Validation", _INVALID),
    WrongShape: Wire(422, "Validation", _INVALID),
    UnsupportedMediaType: Wire(415, "Validation", _INVALID),
    BodyTooLarge: Wire(413, "Validation", _INVALID),
    BodyTimeout: Wire(408, "Validation", _INVALID),
    RouteNotFound: Wire(404, "Validation", _INVALID),
    MethodNotAllowed: Wire(405, "Validation", _INVALID),
    # Errors of start-up cannot come up in a request; if one does, it is a bug.
    errors.EmbedserveError: INTERNAL,
}

STATUSES = (200, *sorted({wire.status for wire in TABLE.values()}))


def wire_of(error: EmbedserveError) -> Wire:
    """The entry of the class, or of its nearest ancestor."""
    return next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)


def tei_error(wire: Wire, error: EmbedserveError, request_id: str) -> bytes:
    body = {"error": error.message, "error_type": wire.tei}
    if wire.status >= 500:
        body["request_id"] = request_id
    return orjson.dumps(body)


def openai_error(wire: Wire, error: EmbedserveError, request_id: str) -> bytes:
    body = {"message": error.message, "type": wire.openai, "param": None, "code": error.reason}
    if wire.status >= 500:
        body["request_id"] = request_id
    return orjson.dumps({"error": body})
