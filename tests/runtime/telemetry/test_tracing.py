"""Traces as a collector gets them: over real OTLP/HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from embedserve_runtime.config import TelemetrySettings
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.telemetry.tracing import RequestTracer
from tests.runtime.rpc.rpc_kit import served
from tests.support.in_process_server import serve_in_process

FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Collector(ThreadingHTTPServer):
    """Keeps what is posted to `/v1/traces`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[ExportTraceServiceRequest] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.received
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, str]:
        attributes = self.received[0].resource_spans[0].resource.attributes
        return {attribute.key: attribute.value.string_value for attribute in attributes}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert isinstance(self.server, Collector)
        if self.path == "/v1/traces":
            self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def attributes(span: Span) -> dict[str, object]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value") or "string_value")
        for attribute in span.attributes
    }


async def test_a_request_is_a_span_with_its_stages_under_the_client_s_own(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=docs,team=search")
    tracer = RequestTracer(collector.url, "tiny")
    async with serve_in_process(tracer=tracer) as server:
        answer = await server.client.post(
            "/embed", json={"inputs": ["hello", "world"]}, headers=TRACEPARENT | {"x-request-id": "r-1"}
        )
        assert (await server.client.get("/health")).status_code == 200
    tracer.flush()
    assert answer.status_code == 200
    assert collector.resource["service.name"] == "docs"
    assert collector.resource["team"] == "search"
    assert collector.resource["embedserve.model"] == "tiny"
    spans = {span.name: span for span in collector.spans}
    assert list(spans) == ["tokenize", "queue", "forward", "encode", "POST /embed"], "probes have none"
    request = spans.pop("POST /embed")
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    assert request.kind == Span.SPAN_KIND_SERVER
    got = attributes(request)
    want = {
        "http.request.method": "POST",
        "http.route": "/embed",
        "http.response.status_code": 200,
        "embedserve.request_id": "r-1",
        "embedserve.inputs": 2,
        "embedserve.tokens": 6,
    }
    assert {key: got[key] for key in want} == want
    at = request.start_time_unix_nano
    for stage in spans.values():
        assert stage.parent_span_id == request.span_id
        assert at <= stage.start_time_unix_nano <= stage.end_time_unix_nano <= request.end_time_unix_nano
        at = stage.start_time_unix_nano


def broken(batch: PackedBatch) -> FloatArray:
    raise EngineFailure("broken")


@pytest.mark.parametrize(
    ("body", "want_status", "want_code"),
    [({"inputs": "a"}, 500, Status.STATUS_CODE_ERROR), ({"inputs": 1.5}, 422, Status.STATUS_CODE_UNSET)],
    ids=["the server's fault", "the client's fault"],
)
async def test_a_request_that_fails_is_a_span_without_stages(
    collector: Collector, body: dict[str, object], want_status: int, want_code: int
) -> None:
    tracer = RequestTracer(collector.url, "tiny")
    async with serve_in_process(broken, tracer=tracer) as server:
        assert (await server.client.post("/embed", json=body)).status_code == want_status
    tracer.flush()
    (span,) = collector.spans
    assert attributes(span)["http.response.status_code"] == want_status
    assert span.status.code == want_code
    assert not span.parent_span_id


async def test_each_message_of_a_grpc_call_is_a_span_with_the_same_stages(collector: Collector) -> None:
    tracer = RequestTracer(collector.url, "tiny")
    metadata = (*TRACEPARENT.items(), ("x-request-id", "r-2"))
    async with served(tracer=tracer) as server:
        call = server.client.call("tei.v1.Embed/EmbedStream")
        message = server.client.message("tei.v1.Embed/EmbedStream", {"inputs": "hello"})
        assert len([answer async for answer in call(iter([message, message]), metadata=metadata)]) == 2
        await server.client.refusal("tei.v1.Predict/Predict", inputs="hello")
    tracer.flush()
    by_name: dict[str, list[Span]] = {}
    for span in collector.spans:
        by_name.setdefault(span.name, []).append(span)
    assert {name: len(spans) for name, spans in by_name.items()} == {
        **dict.fromkeys(("tokenize", "queue", "forward", "encode", "tei.v1.Embed"), 2),
        "tei.v1.Predict": 1,
    }
    for span in by_name["tei.v1.Embed"]:
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
        want = {
            "rpc.system": "grpc",
            "rpc.service": "tei.v1.Embed",
            "rpc.grpc.status_code": 0,
            "embedserve.request_id": "r-2",
            "embedserve.inputs": 1,
            "embedserve.tokens": 3,
        }
        assert attributes(span) == want
    assert attributes(by_name["tei.v1.Predict"][0])["rpc.grpc.status_code"] == FAILED_PRECONDITION


async def test_a_client_that_is_not_sampled_is_not_traced(collector: Collector) -> None:
    tracer = RequestTracer(collector.url, "tiny")
    headers = {"traceparent": TRACEPARENT["traceparent"][:-1] + "0"}
    async with serve_in_process(tracer=tracer) as server:
        assert (await server.client.post("/embed", json={"inputs": "a"}, headers=headers)).status_code == 200
    tracer.flush()
    assert collector.received == []


SWITCHES: dict[str, tuple[dict[str, str], str | None, bool]] = {
    "nothing is set": ({}, None, False),
    "the setting": ({}, "http://collector:4318", True),
    "the standard variable": ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, None, True),
    "that for traces": ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, None, True),
    "switched off as a whole": ({"OTEL_SDK_DISABLED": "true"}, "http://collector:4318", False),
    "traces switched off": ({"OTEL_TRACES_EXPORTER": "none"}, "http://collector:4318", False),
}


@pytest.mark.parametrize(("environment", "endpoint", "want"), SWITCHES.values(), ids=SWITCHES)
def test_traces_are_off_until_they_are_asked_for(
    environment: dict[str, str], endpoint: str | None, want: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert TelemetrySettings(otlp_endpoint=endpoint).has_traces is want
