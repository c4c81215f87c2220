"""Exports traces over OTLP/HTTP: a span for each request, and one for each of its stages.

Spans are created when a request is done, from the times that are measured anyway, so that no stage depends on tracing.
The SDK's queue of finished spans is bounded and drops what does not fit; its own thread sends them. Sampling, headers,
limits and resource attributes are the SDK's, from the standard `OTEL_*` variables.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from embedserve_runtime.telemetry.requests import FinishedRequest, RequestFacts

# The time that sending the last spans may take at the end of the process.
MAX_FLUSH_SECONDS = 3.0
SECOND = 1_000_000_000


class RequestTracer:
    """Sends a span for each finished request to a collector.

    endpoint: base URL of the collector; None takes `OTEL_EXPORTER_OTLP_*`.
    """

    def __init__(self, endpoint: str | None, model: str) -> None:
        attributes = {
            "service.name": "embedserve",
            "service.version": version("embedserve-runtime"),
            "embedserve.model": model,
        }
        resource = Resource.create(attributes).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        url = f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("embedserve_runtime")
        self._propagator = TraceContextTextMapPropagator()

    def request_done(self, done: FinishedRequest, headers: Mapping[bytes, bytes]) -> None:
        """Record the spans of a request. headers: those of the request; their W3C trace context is the parent."""
        end = time.time_ns()
        start = end - int(done.seconds * SECOND)
        span = self._tracer.start_span(
            done.route if done.rpc_status is not None else f"{done.method} {done.route}",
            context=self._parent_context(headers),
            kind=SpanKind.SERVER,
            start_time=start,
            attributes={
                **_protocol_attributes(done),
                "embedserve.request_id": done.request_id,
                "embedserve.inputs": done.facts.inputs,
                "embedserve.tokens": sum(done.facts.lengths),
            },
        )
        if span.is_recording():
            if done.status >= 500:
                span.set_status(StatusCode.ERROR)
            if done.facts.lengths:
                self._add_stages(span, start, end, done.facts)
        span.end(end)

    def flush(self) -> None:
        """Send the remaining spans, for a bounded time. Blocks."""
        sending = threading.Thread(target=self._provider.force_flush, name="traces", daemon=True)
        sending.start()
        sending.join(MAX_FLUSH_SECONDS)

    def _parent_context(self, headers: Mapping[bytes, bytes]) -> Context:
        carrier = {
            name: headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in headers
        }
        return self._propagator.extract(carrier, context=Context())

    def _add_stages(self, request: Span, start: int, end: int, facts: RequestFacts) -> None:
        """Add a span for each stage, one after another; queue and forward are means over the inputs, tokenize includes
        reading the JSON."""
        context = set_span_in_context(request)
        started = start + int(facts.read_seconds * SECOND)
        lengths = (
            ("tokenize", facts.tokenize_seconds),
            ("queue", facts.queue_seconds),
            ("forward", facts.engine_seconds),
        )
        at = started
        for name, seconds in lengths:
            until = min(at + int(seconds * SECOND), end)
            self._tracer.start_span(name, context=context, start_time=at).end(until)
            at = until
        encoding = min(max(started + int(facts.service_seconds * SECOND), at), end)
        self._tracer.start_span("encode", context=context, start_time=encoding).end(end)


def _protocol_attributes(done: FinishedRequest) -> dict[str, str | int]:
    """Return the attributes of the request's protocol, under OpenTelemetry's names."""
    if done.rpc_status is not None:
        return {"rpc.system": "grpc", "rpc.service": done.route, "rpc.grpc.status_code": done.rpc_status}
    return {
        "http.request.method": done.method,
        "http.route": done.route,
        "http.response.status_code": done.status,
    }
