"""Documents error answers for OpenAPI, the same for all routes of a dialect."""

from __future__ import annotations

from typing import Any

from embedserve_runtime.api.schemas.base import ApiModel

_ERRORS = {
    400: "The input is empty, or the body is not JSON.",
    401: "There is no API key, or a wrong one; the body is empty on TEI's routes.",
    403: "The API key is not for this route; on the management port, the call is not the operator's.",
    408: "The body did not arrive in time.",
    409: "The request insists on another vector space.",
    413: "The body is too large.",
    415: "The body is not declared as JSON, or is packed in an encoding that is not read.",
    422: "The body is valid JSON that cannot be served; the message says why.",
    424: "The model is of another kind than the route.",
    429: "The queue is full; `Retry-After` says when to come back.",
    500: "The engine or the server failed.",
    503: "The model is not loaded yet, or the process is going down.",
    504: "The request was not answered in time.",
}
Responses = dict[int | str, dict[str, Any]]


def error_responses(model: type[ApiModel], *statuses: int) -> Responses:
    """Return FastAPI's `responses` for a route: all errors, or those given, with the dialect's shape."""
    return {status: {"model": model, "description": _ERRORS[status]} for status in statuses or _ERRORS}
