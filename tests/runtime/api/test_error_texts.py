"""Errors name the item and the field in the dialect of their path, on paths that do not exist too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from embedserve_runtime.api.memory import RequestMemory
from tests.support.in_process_server import serve_in_process
from tests.support.tiny_models import build_classifier_card

OPENAI, MESSAGE, TEI = "openai", "message", "tei"
SHAPES = {
    OPENAI: {"error", "message", "code", "type"},
    MESSAGE: {"message", "code", "id"},
    TEI: {"error", "error_type"},
}


def message_of(dialect: str, content: Any) -> str:
    assert set(content) == SHAPES[dialect]
    return str(content["error"] if dialect == TEI else content["message"])


PATHS = [
    ("/v1/embeddings/", OPENAI, "did you mean /v1/embeddings?"),
    ("//v1/embeddings", OPENAI, "did you mean /v1/embeddings?"),
    ("/v1//rerank", MESSAGE, "did you mean /v1/rerank?"),
    ("/v1/v1/embeddings", OPENAI, "did you mean /v1/embeddings?"),
    ("/v1/openai/embeddings", OPENAI, "did you mean /embeddings?"),
    ("/v1/chat/completions", OPENAI, "/docs lists them all"),
    ("/v1", OPENAI, "/docs lists them all"),
    ("/v1/", OPENAI, "/docs lists them all"),
    ("/embeddings/", OPENAI, "did you mean /embeddings?"),
    ("/v1/rerank/", MESSAGE, "did you mean /v1/rerank?"),
    ("/v1/encode//", MESSAGE, "did you mean /v1/encode?"),
    ("/v2/nope", MESSAGE, "/docs lists them all"),
    ("/embed/", TEI, "did you mean /embed?"),
    ("/nope", TEI, "/docs lists them all"),
]


@pytest.mark.parametrize(("path", "dialect", "hint"), PATHS)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_path_that_does_not_exist_is_told_in_the_dialect_of_its_beginning(
    path: str, dialect: str, hint: str, method: str
) -> None:
    async with serve_in_process() as server:
        answer = await server.client.request(method, server.client.base_url.copy_with(path=path))
    assert answer.status_code == 404
    assert message_of(dialect, answer.json()) == f"no such path; {hint}"


BROKEN = [
    pytest.param(
        rb'{"inputs": ["ok", "x\ud83d"]}', "`inputs.1` has half a surrogate pair", id="half an emoji"
    ),
    pytest.param(
        b'{"inputs": ["ok", "' + b"a" * 1_500_000 + rb'", "\ud83d"]}',
        "`inputs.2` has half a surrogate pair",
        id="half an emoji in a large body",
    ),
    pytest.param(
        rb'{"inputs": "ok", "trunc\ud83date": true}',
        "the name of a field has half a surrogate pair",
        id="half an emoji in the name of a field",
    ),
    pytest.param(
        b'{"inputs": "ok", "trunc\xffate": true}',
        "the name of a field is not UTF-8",
        id="a byte that is no text in the name of a field",
    ),
    pytest.param(b'{"inputs": ["ok", "\xff"]}', "`inputs.1` is not UTF-8", id="a byte that is no text"),
    pytest.param(
        b'{"inputs": ["ok",\n"a\xed\xa0\xbd"]}', "`inputs.1` is not UTF-8", id="a surrogate as bytes"
    ),
    pytest.param(b"", "empty body", id="an empty body"),
    pytest.param(b" \n", "empty body", id="a blank body"),
    pytest.param('{"inputs": "a"}'.encode("utf-16"), "send UTF-8", id="UTF-16 with a mark"),
    pytest.param('{"inputs": "a"}'.encode("utf-16-be"), "send UTF-8", id="UTF-16 without a mark"),
    pytest.param('{"inputs": "a"}'.encode("utf-32"), "send UTF-8", id="UTF-32"),
]


@pytest.mark.parametrize(("content", "want"), BROKEN)
async def test_a_body_that_is_no_json_is_told_by_its_text(content: bytes, want: str) -> None:
    async with serve_in_process(memory=RequestMemory(2**22, 2**24)) as server:
        answer = await server.client.post("/embed", content=content)
    assert answer.status_code == 400
    assert want in answer.json()["error"]


LONG = "hello " * 40
INSTANCES: list[tuple[Any, str]] = [
    ({"inputs": ""}, "instance 1 is empty"),
    ({"inputs": LONG, "truncate": False}, "instance 1 has 42 tokens"),
    ({"inputs": [[5, 999]]}, "instance 1: token id 999 is not in the vocabulary"),
    ({"inputs": ["a", ""]}, "instance 1: input 1 is empty"),
    ({"inputs": [1, "a"]}, "instance 1: `inputs` mixes numbers with texts"),
    ({"inputs": "a", "prompt_name": "nope"}, "instance 1: prompt name 'nope' does not exist"),
    ({"inputs": "a", "dimensions": 99}, "instance 1: `dimensions` must lie between 1 and 8"),
    ({"query": "a", "texts": ["b"]}, "instance 1: model is not a re-ranker model"),
    ("a", "instance 1: the value must be an object"),
]


@pytest.mark.parametrize(("instance", "want"), INSTANCES)
async def test_vertex_names_the_instance(instance: Any, want: str) -> None:
    async with serve_in_process() as server:
        answer = await server.client.post("/vertex", json={"instances": [{"inputs": "a"}, instance]})
    assert answer.json()["error"].startswith(want)


async def test_vertex_ranks_instances_of_both_dialects() -> None:
    instances = [{"query": "a", "texts": ["b"]}, {"query": "a", "documents": ["b"]}]
    async with serve_in_process(card=build_classifier_card("LABEL_0")) as server:
        answer = await server.client.post("/vertex", json={"instances": instances})
    tei, cohere = answer.json()["predictions"]
    assert tei[0]["score"] == pytest.approx(cohere["results"][0]["relevance_score"])


TIMEOUTS = [
    ("1e-400", 504),
    ("0.000000001", 504),
    ("1e-400000", 504),
    (" 10 ", 200),
    ("1e400", 200),
    ("+5.", 200),
    ("1_0", 422),
    ("0", 422),
    ("0.0e5", 422),
    ("-1", 422),
    ("nan", 422),
    ("inf", 422),
    ("ten", 422),
]


@pytest.mark.parametrize(("value", "want_status"), TIMEOUTS)
@pytest.mark.parametrize(
    ("path", "body"),
    [("/embed", {"inputs": "hello"}), ("/tokenize", {"inputs": "hello"}), ("/decode", {"ids": [9]})],
)
async def test_a_timeout_is_a_decimal_number_on_every_route(
    path: str, body: Any, value: str, want_status: int
) -> None:
    async with serve_in_process() as server:
        answer = await server.client.post(
            path, content=json.dumps(body), headers={"x-embedserve-timeout": value}
        )
    assert answer.status_code == want_status, answer.text


PARAMS = [
    pytest.param({"input": "a", "dimensions": 0}, "dimensions", id="the shape of a field"),
    pytest.param({"input": "a", "dimensions": 99}, "dimensions", id="a value of a field"),
    pytest.param({"input": ["a", 5.5]}, "input", id="an item of a field"),
    pytest.param({"input": ["a", ""]}, "input", id="an empty input"),
    pytest.param({"model": "tiny"}, "input", id="a field that is missing"),
    pytest.param({"input": "a", "prompt_name": "nope"}, None, id="a message that names no field"),
]


@pytest.mark.parametrize(("body", "want_param"), PARAMS)
async def test_an_error_of_openai_has_the_field_that_its_message_names(
    body: dict[str, Any], want_param: str | None
) -> None:
    async with serve_in_process() as server:
        answer = await server.client.post("/v1/embeddings", json=body)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["param"] == want_param


async def test_a_deadline_that_was_short_is_not_told_as_no_time() -> None:
    async with serve_in_process() as server:
        answer = await server.client.post(
            "/embed", json={"inputs": "a"}, headers={"x-embedserve-timeout": "1e-9"}
        )
    assert answer.status_code == 504
    assert "within 0.0 s" not in answer.json()["error"]
