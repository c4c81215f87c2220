"""schemathesis against a live server: what the OpenAPI document promises is what the routes do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.in_process_server import build_openapi_document
from tests.support.models import tiny_bert
from tests.support.server_process import start_server
from tests.support.tokenizers import with_minilm_tokenizer

pytestmark = pytest.mark.thorough


def no_server_error_but_the_timeout_asked_for(context: Any, response: Any, case: Any) -> bool | None:
    """A client that gives the server 1e-230 s gets what is documented for that."""
    if response.status_code == 504 and "X-Embedserve-Timeout" in (case.headers or {}):
        return None
    return not_a_server_error(context, response, case)


CHECKS = [
    no_server_error_but_the_timeout_asked_for,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("model")
    tiny_bert(folder, vocab_size=30_522, max_position_embeddings=64)
    with_minilm_tokenizer(folder)
    # Without a management port the probes are on the port of the document.
    with start_server(
        folder, tmp_path_factory.mktemp("server"), {"server": {"management_port": None}}
    ) as server:
        server.wait_until_ready()
        yield server.address
        server.process.terminate()
        server.wait_for_exit()


@pytest.fixture(scope="module")
def described(address: str) -> Any:
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


OPERATIONS = [
    (path, method) for path, methods in build_openapi_document()["paths"].items() for method in methods
]


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_the_server_does_what_its_document_says(path: str, method: str, described: Any) -> None:
    @given(case=described[path][method].as_strategy())
    @settings(max_examples=12, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    check()
