"""Everything that this package raises.

OperatorError
├── ManifestError        a file given to `render` is not a valid EmbeddingService
├── SettingsError        what the operator was told at its start makes no sense
├── ApiError             the API server did not do what was asked
│   ├── RefusedError     it said no to the content (400, 403, 413, 422): the same request gets the same answer
│   ├── ConflictError    somebody else owns a field or changed the object first (409)
│   ├── NotFoundError    the object is not there (404)
│   └── UnavailableError no answer, too busy or broken (time-out, 429, 5xx): the same request may pass later
├── LeaseLostError       this process may no longer lead
├── WatchFailedError     a watch ended in a way that only a new process gets over
└── QuestionError        a question to the metrics API has no answer
    ├── BadQuestionError    its selector is none
    ├── UnknownMetricError  there is no such metric, or no such pod
    └── PodsSilentError     pods that should know did not answer

Whether a later try can help is the class, never the text.
"""

from __future__ import annotations


class OperatorError(Exception):
    """Base of all."""


class ManifestError(OperatorError):
    """A file holds no EmbeddingService, or one with faults."""


class SettingsError(OperatorError):
    """Hardware classes or images of the chart's values cannot be used."""


class ApiError(OperatorError):
    """A request to the API server failed."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class RefusedError(ApiError):
    """The content is not acceptable; repeating it as it is cannot help."""


class ConflictError(ApiError):
    """Another manager owns a field, the object changed meanwhile, or it exists already."""


class NotFoundError(ApiError):
    """The object does not exist."""


class UnavailableError(ApiError):
    """No usable answer; trying later may help."""


class WatchFailedError(OperatorError):
    """A watch ended in a way that kopf does not get over; a new process begins anew."""


class LeaseLostError(OperatorError):
    """The Lease could not be renewed in time; whoever led must stop at once."""


class QuestionError(OperatorError):
    """A question to the metrics API has no answer."""


class BadQuestionError(QuestionError):
    """The question is not well-formed."""


class UnknownMetricError(QuestionError):
    """No pod has such a metric, or there is no such pod."""


class PodsSilentError(QuestionError):
    """Pods that should know did not answer."""
