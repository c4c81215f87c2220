"""Creates answers from bytes, and the headers that go with vectors."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import get_context
from embedserve_runtime.service import InferenceService, RequestUsage
from embedserve_runtime.telemetry.requests import RequestFacts

Header = tuple[bytes, bytes]

JSON = b"application/json"
VECTOR_SPACE = b"x-embedserve-vector-space"
COMPUTE = b"x-embedserve-compute"
SPACE_HEADERS = (VECTOR_SPACE, COMPUTE)


class BytesResponse(Response):
    """An answer whose body and headers are bytes already. An empty one has no content type."""

    def __init__(
        self,
        body: bytes,
        status_code: int = 200,
        headers: Iterable[Header] = (),
        content_type: bytes = JSON,
    ) -> None:
        self.status_code = status_code
        self.background = None
        self.body = body
        media_type = ((b"content-type", content_type),) if body else ()
        self.raw_headers = [*media_type, (b"content-length", b"%d" % len(body)), *headers]


def build_result_response(
    request: Request, service: InferenceService, body: bytes, usage: RequestUsage
) -> BytesResponse:
    """Create the JSON answer of a request that the engine has run, and record its usage in the request's facts."""
    record_usage(get_context(request).facts, usage)
    return BytesResponse(body, headers=build_result_headers(service, usage))


def build_result_headers(service: InferenceService, usage: RequestUsage) -> tuple[Header, ...]:
    """Return headers with the vector space, and TEI's counters and times in whole milliseconds."""
    timings = usage.timings
    total = b"%d" % (timings.total * 1000)
    return (
        *space_headers(service),
        (b"x-compute-characters", b"%d" % usage.characters),
        (b"x-compute-tokens", b"%d" % usage.tokens),
        (b"x-compute-time", total),
        (b"x-total-time", total),
        (b"x-tokenization-time", b"%d" % (timings.tokenize * 1000)),
        (b"x-queue-time", b"%d" % (timings.queue * 1000)),
        (b"x-inference-time", b"%d" % (timings.engine * 1000)),
    )


def space_headers(service: InferenceService) -> tuple[Header, Header]:
    """Return headers with the vector space, and with what computes its vectors."""
    return (
        (VECTOR_SPACE, service.card.vector_space.encode()),
        (COMPUTE, service.engines[0].compute_precision.encode()),
    )


def record_usage(facts: RequestFacts, usage: RequestUsage) -> None:
    """Record the usage of an answer, for metrics, logs and traces."""
    timings = usage.timings
    facts.lengths = usage.lengths
    facts.cached, facts.joined = usage.cached, usage.joined
    facts.tokenize_seconds = timings.tokenize
    facts.queue_seconds = timings.queue
    facts.engine_seconds = timings.engine
    facts.service_seconds = timings.total
