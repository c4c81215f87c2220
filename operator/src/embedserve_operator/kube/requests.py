"""Defines requests to the API server, and turns answers into objects or errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlencode

from embedserve_operator.errors import (
    ApiError,
    ConflictError,
    FailedRequestError,
    InvalidContentError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from embedserve_operator.kube.objects import Received
from embedserve_operator.kube.views.cluster import ErrorStatus

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_REFUSALS = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
_UNTYPED_CONTENT = re.compile(r"failed to create typed (patch )?object|strict decoding error")
"""A pattern of what the API server says, partly with status 500, about content that does not have the types of its
kind: an unknown field, or two items with one key in a list that is a map.
"""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request to the API server."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Received | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    is_election: bool = False
    """Indicates that it decides who leads: such a request is sent by processes that do not lead, too."""

    @property
    def url(self) -> str:
        """The path with its query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def headers(self) -> dict[str, str]:
        """The headers that say what is sent and what is wanted."""
        content_headers = {"Content-Type": self.content_type} if self.body is not None else {}
        return {"Accept": self.accept, **content_headers}


def parse_response(status: int, body: bytes) -> Received:
    """Return the object of an answer; one that reports a failure raises the ApiError that says which."""
    try:
        content = json.loads(body)
    except ValueError:
        content = None
    if status < HTTPStatus.MULTIPLE_CHOICES and isinstance(content, Mapping):
        return content
    error = ErrorStatus.parse(content)
    message = error.message or f"answer {status} from the API server"
    if status == HTTPStatus.NOT_FOUND:
        raise NotFoundError(message, status=status)
    if status == HTTPStatus.CONFLICT:
        raise ConflictError(message, status=status)
    if _is_invalid_content(error, status):
        raise InvalidContentError(message, status=status)
    if status in _REFUSALS:
        raise RefusedError(message, status=status)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR and error.kind:
        raise FailedRequestError(message, status=status)
    if status >= HTTPStatus.TOO_MANY_REQUESTS or not error.kind:
        raise UnavailableError(message, status=status)
    raise ApiError(message, status=status)


def _is_invalid_content(error: ErrorStatus, status: int) -> bool:
    """Return whether the API's own validation refuses the content; policies and webhooks name no field."""
    if error.reason == "Invalid" and status == HTTPStatus.UNPROCESSABLE_ENTITY:
        return any(cause.field for cause in error.details.causes)
    is_typed_failure = status in (HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR)
    return is_typed_failure and _UNTYPED_CONTENT.search(error.message) is not None
