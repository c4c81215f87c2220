"""Defines everything that the package raises.

OperatorError
├── ManifestError        a file given to `render` is not a valid EmbeddingService
├── SettingsError        what the operator was told at its start makes no sense
├── ApiError             the API server did not do what was asked
│   ├── RefusedError     it said no to the content (400, 403, 413, 422): the same request gets the same answer
│   │   └── InvalidContentError  the content breaks a rule of the API itself, which nobody but its author can change
│   ├── ConflictError    somebody else owns a field or changed the object first (409)
│   ├── NotFoundError    the object is not there (404)
│   └── UnavailableError no answer, too busy or broken (time-out, 429, 5xx): the same request may pass later
│       └── FailedRequestError  it failed at this one request (500), as where an admission webhook is away
├── LeaseLostError       this process may no longer lead
├── WatchFailedError     a watch ended in a way that only a new process gets over
└── MetricQueryError     a query of the metrics API has no answer
    ├── InvalidMetricQueryError  its selector is malformed
    ├── UnknownMetricError       there is no such metric, or no such pod
    └── PodsUnresponsiveError    pods that should know did not answer

Whether a later try can help is the class, never the text.
"""

from __future__ import annotations


class OperatorError(Exception):
    """Base class of the package's errors."""


class ManifestError(OperatorError):
    """A file holds no EmbeddingService, or one with faults."""


class SettingsError(OperatorError):
    """The hardware classes or images of the chart's values cannot be used."""


class ApiError(OperatorError):
    """A request to the API server failed."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class RefusedError(ApiError):
    """The content is not acceptable; repeating the request cannot help."""


class InvalidContentError(RefusedError):
    """The content breaks a rule of the API itself: no policy, quota or right is in the way that others could change."""


class ConflictError(ApiError):
    """Another manager owns a field, the object has changed meanwhile, or it exists already."""


class NotFoundError(ApiError):
    """The object does not exist."""


class UnavailableError(ApiError):
    """There was no usable answer; trying later may help."""


class FailedRequestError(UnavailableError):
    """The API server failed at this request, while it may well answer others."""


class WatchFailedError(OperatorError):
    """A watch ended in a way that kopf cannot recover from; a new process starts again."""


class LeaseLostError(OperatorError):
    """The Lease could not be renewed in time; whoever led must stop at once."""


class MetricQueryError(OperatorError):
    """A query of the metrics API has no answer."""


class InvalidMetricQueryError(MetricQueryError):
    """The query is malformed."""


class UnknownMetricError(MetricQueryError):
    """No pod has such a metric, or there is no such pod."""


class PodsUnresponsiveError(MetricQueryError):
    """Pods that should know the value did not answer."""
