"""Maps error classes to gRPC statuses in one table. TEI's errors have the statuses that TEI gives them."""

from __future__ import annotations

import math

from grpc import StatusCode

from embedserve_runtime import errors
from embedserve_runtime.api.errors import BodyTooLarge, RouteNotFound
from embedserve_runtime.errors import EmbedserveError, Overloaded

TABLE: dict[type[EmbedserveError], StatusCode] = {
    errors.RequestError: StatusCode.INVALID_ARGUMENT,
    BodyTooLarge: StatusCode.RESOURCE_EXHAUSTED,
    RouteNotFound: StatusCode.UNIMPLEMENTED,
    errors.VectorSpaceMismatch: StatusCode.FAILED_PRECONDITION,
    errors.WrongModelKind: StatusCode.FAILED_PRECONDITION,
    errors.EngineFailure: StatusCode.FAILED_PRECONDITION,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    errors.NotReady: StatusCode.UNAVAILABLE,
    errors.Unauthorized: StatusCode.UNAUTHENTICATED,
    errors.RouteForbidden: StatusCode.PERMISSION_DENIED,
    # Errors of start-up cannot come up in a call; if one does, it is a bug.
    errors.EmbedserveError: StatusCode.INTERNAL,
}


def find_status(error: EmbedserveError) -> StatusCode:
    """Return the table's entry for the class, or for its nearest ancestor."""
    return next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)


def build_trailers(error: EmbedserveError, request_id: str) -> tuple[tuple[str, str], ...]:
    """Build the trailers: the precise reason, and when to retry (clients with a retry policy read
    `grpc-retry-pushback-ms`)."""
    trailers = (("x-request-id", request_id), ("x-embedserve-reason", error.reason))
    if not isinstance(error, Overloaded):
        return trailers
    seconds = error.retry_after
    return (
        *trailers,
        ("retry-after", str(math.ceil(seconds))),
        ("grpc-retry-pushback-ms", str(math.ceil(seconds * 1000))),
    )
