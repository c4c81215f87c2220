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
    """How an error class looks outside.

    tei: TEI's `error_type`. openai: OpenAI's `type`. cause: TEI's label of `te_request_failure`.
    """

    status: int
    tei: str
    openai: str
    cause: str


_INVALID = "invalid_request_error"
INTERNAL = Wire(500, "Backend", "server_error", "inference")

TABLE: dict[type[EmbedserveError], Wire] = {
    errors.EmptyInput: Wire(400, "Empty", _INVALID, "validation"),
    errors.InvalidInput: Wire(422, "Validation", _INVALID, "validation"),
    errors.InputTooLong: Wire(422, "Validation", _INVALID, "validation"),
    errors.BatchTooLarge: Wire(422, "Validation", _INVALID, "batch_size"),
    errors.UnknownPrompt: Wire(422, "Validation", _INVALID, "validation"),
    errors.VectorSpaceMismatch: Wire(409, "Validation", _INVALID, "validation"),
    errors.Overloaded: Wire(429, "Overloaded", "rate_limit_error", "overloaded"),
    errors.DeadlineExceeded: Wire(504, "Overloaded", "server_error", "overloaded"),
    errors.NotReady: Wire(503, "Unhealthy", "server_error", "unhealthy"),
    errors.Unauthorized: Wire(401, "Validation", "authentication_error", "unauthorized"),
    errors.WrongModelKind: Wire(424, "Backend", _INVALID, "model_type"),
    errors.EngineFailure: INTERNAL,
    errors.NotFinite: Wire(500, "Backend", "server_error", "missing_values"),
    errors.RequestError: Wire(400, "Validation", _INVALID, "validation"),
    MalformedBody: Wire(400, "Validation", _INVALID, "validation"),
    WrongShape: Wire(422, "Validation", _INVALID, "validation"),
    UnsupportedMediaType: Wire(415, "Validation", _INVALID, "validation"),
    BodyTooLarge: Wire(413, "Validation", _INVALID, "validation"),
    BodyTimeout: Wire(408, "Validation", _INVALID, "validation"),
    RouteNotFound: Wire(404, "Validation", _INVALID, "validation"),
    MethodNotAllowed: Wire(405, "Validation", _INVALID, "validation"),
    # Errors of start-up cannot come up in a request; if one does, it is a bug.
    errors.EmbedserveError: INTERNAL,
}

# Clients that went away have no error class: nobody receives one.
GONE_CAUSE = "dropped"
CAUSES = (*sorted({wire.cause for wire in TABLE.values()}), GONE_CAUSE)

# nginx's number for a client that closed the connection; it appears in metrics only, nobody receives it.
CLIENT_GONE = 499
STATUSES = (200, *sorted({wire.status for wire in TABLE.values()} | {CLIENT_GONE}))


def wire_of(error: EmbedserveError) -> Wire:
    """The entry of the class, or of its nearest ancestor."""
    return next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)


def tei_error(wire: Wire, error: EmbedserveError, request_id: str) -> bytes:
    if wire.status == 401:
        return b""  # as TEI does
    body = {"error": error.message, "error_type": wire.tei}
    if wire.status >= 500:
        body["request_id"] = request_id
    return orjson.dumps(body)


def openai_error(wire: Wire, error: EmbedserveError, request_id: str) -> bytes:
    """OpenAI's nested shape, and beside it the flat one of TEI's OpenAI route: clients read one or the other."""
    nested = {"message": error.message, "type": wire.openai, "param": None, "code": error.reason}
    if wire.status >= 500:
        nested["request_id"] = request_id
    return orjson.dumps({"error": nested, "message": error.message, "code": wire.status, "type": wire.tei})


def message_error(wire: Wire, error: EmbedserveError, request_id: str) -> bytes:
    """Cohere's shape, and that of the native route: a message; the precise reason beside it."""
    return orjson.dumps({"message": error.message, "code": error.reason, "id": request_id})
