"""The metrics page, the OpenAPI document and the documentation page; the error table as a whole."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from embedserve_runtime import errors
from embedserve_runtime.api import errors as http_errors
from embedserve_runtime.api.errors import STATUSES, TABLE, choose_counted_status, find_http_error
from embedserve_runtime.api.routes import EMBEDDING_ROUTES, FORWARDED, MANAGEMENT_ROUTES, OTHER, ROUTES
from embedserve_runtime.errors import EmbedserveError
from tests.support.in_process_server import serve_in_process

NAMES = (
    "embedserve_requests_total",
    "embedserve_request_duration_seconds_count",
    "embedserve_requests_in_flight",
    "embedserve_inputs_total",
    "embedserve_tokens_total",
    "embedserve_engine_failures_total",
    "embedserve_engine_seconds_count",
    "embedserve_batch_inputs_count",
    "embedserve_batch_tokens_count",
    "embedserve_queue_depth",
    "embedserve_queue_tokens",
    "embedserve_queue_seconds",
    "embedserve_max_batch_tokens",
    "embedserve_ready",
    "process_resident_memory_bytes",
    "te_queue_size",
    "te_request_count",
    "te_request_success",
    "te_request_failure",
)


async def test_every_series_is_there_before_the_first_request() -> None:
    async with serve_in_process(ready=False) as server:
        page = await server.client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {line.split(" ")[0] for line in page.text.splitlines() if not line.startswith("#")}
    assert set(NAMES) <= {sample.split("{")[0] for sample in samples}
    for route in EMBEDDING_ROUTES:
        for status in STATUSES:
            assert f'embedserve_requests_total{{route="{route}",status="{status}"}}' in samples


async def test_asking_how_it_is_does_not_make_a_server_busy() -> None:
    async with serve_in_process() as server:
        page = (await server.client.get("/metrics")).text
    assert "\nembedserve_requests_in_flight 0" in page


async def test_every_metric_has_help() -> None:
    async with serve_in_process() as server:
        page = (await server.client.get("/metrics")).text
    typed = set(re.findall(r"^# TYPE (\S+)", page, re.M))
    helped = {name for name, text in re.findall(r"^# HELP (\S+) (.*)$", page, re.M) if text}
    assert typed == helped


async def test_the_model_is_named_with_its_vector_space_and_what_computes_it() -> None:
    async with serve_in_process() as server:
        labels = {
            "model": "tiny",
            "revision": "local",
            "vector_space": "vs2-0123456789abcdef0123",
            "compute": "float32",
            "dimensions": "8",
            "max_length": "32",
        }
        assert server.get_metric("embedserve_model_info", labels) == 1


@pytest.fixture
async def document() -> dict[str, Any]:
    """The document of a server without a management port."""
    async with serve_in_process() as server:
        content: dict[str, Any] = (await server.client.get("/openapi.json")).json()
        assert (await server.client.get("/api-doc/openapi.json")).json() == content, "as TEI has it"
        return content


def test_the_document_is_openapi_3_1(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(document).validate()


def test_the_document_describes_every_route(document: dict[str, Any]) -> None:
    assert set(document["paths"]) == {*ROUTES, "/invocations"} - {OTHER, FORWARDED, *MANAGEMENT_ROUTES}


def test_every_route_with_a_body_is_documented_in_full(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        if "post" not in operations:
            continue
        operation = operations["post"]
        assert operation["summary"], path
        assert {parameter["name"] for parameter in operation["parameters"]} == {
            "X-Embedserve-Vector-Space",
            "X-Embedserve-Timeout",
        }
        assert {"200", "400", "401", "413", "415", "422", "429", "504"} <= set(operation["responses"]), path
        assert operation["security"] == [{"ApiKey": []}, {}], path
        (content,) = operation["requestBody"]["content"].values()
        schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        for name, field in schema["properties"].items():
            assert field.get("description") or "$ref" in field, (path, name)
            assert "examples" in field, (path, name)


async def test_others_are_answered_while_the_document_is_built() -> None:
    async with serve_in_process() as server:
        document = asyncio.create_task(server.client.get("/openapi.json"))
        probe = asyncio.create_task(server.client.get("/health"))
        finished, _ = await asyncio.wait((document, probe), return_when=asyncio.FIRST_COMPLETED)
        assert finished == {probe}
        assert (await document).status_code == 200


PAGES = ("/docs", "/redoc")


@pytest.mark.parametrize("path", PAGES)
async def test_the_documentation_pages_need_nothing_from_elsewhere(path: str) -> None:
    async with serve_in_process() as server:
        page = await server.client.get(path)
        assert page.headers["content-type"].startswith("text/html")
        links = re.findall(r"""(?:href|src|url|spec-url)(?:=|: )["']([^"']+)["']""", page.text)
        assert any(link.endswith(".js") for link in links)
        assert "/openapi.json" in links
        for link in links:
            asset = await server.client.get(link)
            assert asset.status_code == 200, link
            assert asset.content


def subclasses(cls: type[EmbedserveError]) -> set[type[EmbedserveError]]:
    return {cls}.union(*(subclasses(child) for child in cls.__subclasses__()))


# Those of gRPC's own are told over HTTP by nobody.
REQUEST_ERRORS = sorted(
    (
        cls
        for cls in subclasses(errors.RequestError)
        if cls.__module__ in {errors.__name__, http_errors.__name__}
    ),
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize("cls", REQUEST_ERRORS, ids=lambda cls: cls.__name__)
def test_every_request_error_has_its_own_line_in_the_table(cls: type[EmbedserveError]) -> None:
    assert cls in TABLE
    error = cls.__new__(cls)
    assert 400 <= find_http_error(error).status < 600


def test_errors_of_starting_up_are_internal_in_a_request() -> None:
    assert find_http_error(errors.ModelInvalid("x")) is http_errors.INTERNAL


ASSET = "/docs/static/swagger-ui.css"
PARTS_OF_FILES = {
    "a part": (206, {"range": "bytes=0-9"}, "200"),
    "no part": (416, {"range": "bytes=999999999-"}, "400"),
    "nothing new": (304, {"if-modified-since": "Fri, 01 Jan 2100 00:00:00 GMT"}, "200"),
}


@pytest.mark.parametrize("name", [*PARTS_OF_FILES])
async def test_a_browser_that_asks_for_a_part_of_a_file_or_what_is_new_is_counted(name: str) -> None:
    status, headers, counted = PARTS_OF_FILES[name]
    async with serve_in_process() as server:
        assert (await server.client.get(ASSET, headers=headers)).status_code == status
        labels = {"route": OTHER, "status": counted}
        assert server.get_metric("embedserve_requests_total", labels) == 1


@pytest.mark.parametrize(("status", "want"), [(200, 200), (307, 200), (413, 413), (421, 400), (502, 500)])
def test_a_status_without_a_series_is_counted_as_that_of_its_class(status: int, want: int) -> None:
    assert choose_counted_status(status) == want
