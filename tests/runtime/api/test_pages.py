"""The metrics page, the OpenAPI document and the documentation page; the error table as a whole."""

from __future__ import annotations

import re
from typing import Any

import pytest

from embedserve_runtime import errors
from embedserve_runtime.api import errors as http_errors
from embedserve_runtime.api.app import EMBEDDING_ROUTES, MANAGEMENT_ROUTES, OTHER, ROUTES
from embedserve_runtime.api.errors import STATUSES, TABLE, wire_of
from embedserve_runtime.api.forwarding import FORWARDED
from embedserve_runtime.api.openapi import document
from embedserve_runtime.errors import EmbedserveError
from tests.runtime.serve_kit import bench

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
    async with bench(ready=False) as server:
        page = await server.client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {line.split(" ")[0] for line in page.text.splitlines() if not line.startswith("#")}
    assert set(NAMES) <= {sample.split("{")[0] for sample in samples}
    for route in EMBEDDING_ROUTES:
        for status in STATUSES:
            assert f'embedserve_requests_total{{route="{route}",status="{status}"}}' in samples


async def test_asking_how_it_is_does_not_make_a_server_busy() -> None:
    async with bench() as server:
        page = (await server.client.get("/metrics")).text
    assert "\nembedserve_requests_in_flight 0" in page


async def test_every_metric_has_help() -> None:
    async with bench() as server:
        page = (await server.client.get("/metrics")).text
    typed = set(re.findall(r"^# TYPE (\S+)", page, re.M))
    helped = {name for name, text in re.findall(r"^# HELP (\S+) (.*)$", page, re.M) if text}
    assert typed == helped


async def test_the_model_is_named_with_its_vector_space() -> None:
    async with bench() as server:
        labels = {
            "model": "tiny",
            "revision": "local",
            "vector_space": "vs1-0123456789abcdef0123",
            "dimensions": "8",
            "max_length": "32",
        }
        assert server.metric("embedserve_model_info", labels) == 1


def references(part: Any) -> set[str]:
    if isinstance(part, dict):
        own = {part["$ref"]} if "$ref" in part else set()
        return own.union(*(references(value) for value in part.values()))
    if isinstance(part, list):
        return set().union(*(references(value) for value in part))
    return set()


def test_the_document_describes_every_route_and_resolves_every_reference() -> None:
    described = document()
    assert set(described["paths"]) == set(ROUTES) - {OTHER, FORWARDED, *MANAGEMENT_ROUTES}
    for reference in references(described):
        name = reference.removeprefix("#/components/schemas/")
        assert name in described["components"]["schemas"]


def test_the_document_keeps_to_the_version_that_it_names() -> None:
    text = str(document())
    assert "'type': 'null'" not in text, "OpenAPI 3.0 says nullable"
    assert "prefixItems" not in text


async def test_the_documentation_page_needs_nothing_from_elsewhere() -> None:
    async with bench() as server:
        page = await server.client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "//" not in re.sub(r"<!doctype.*?>", "", page.text)
        for link in [*re.findall(r'(?:href|src|url: )="?([^"\s,}]+)"', page.text), "openapi.json"]:
            asset = await server.client.get(f"/{link}")
            assert asset.status_code == 200, link
            assert asset.content


def subclasses(cls: type[EmbedserveError]) -> set[type[EmbedserveError]]:
    return {cls}.union(*(subclasses(child) for child in cls.__subclasses__()))


REQUEST_ERRORS = sorted(subclasses(errors.RequestError), key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", REQUEST_ERRORS, ids=lambda cls: cls.__name__)
def test_every_request_error_has_its_own_line_in_the_table(cls: type[EmbedserveError]) -> None:
    assert cls in TABLE
    error = cls.__new__(cls)
    assert 400 <= wire_of(error).status < 600


def test_errors_of_starting_up_are_internal_in_a_request() -> None:
    assert wire_of(errors.ModelInvalid("x")) is http_errors.INTERNAL
