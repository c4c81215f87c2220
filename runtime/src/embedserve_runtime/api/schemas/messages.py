"""Errors of the Cohere and native routes."""

from __future__ import annotations

from embedserve_runtime.api.schemas.base import ApiModel, ErrorMessage, Reason, RequestId


class MessageErrorResponse(ApiModel):
    """An error of the Cohere and native routes; `code` is the precise reason, `id` that of the request."""

    message: ErrorMessage
    code: Reason
    id: RequestId
