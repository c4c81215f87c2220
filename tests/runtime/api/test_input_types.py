"""Query or document, in the words of every dialect: the same vector, bit for bit, on every route."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from embedserve_runtime.forward.arrays import FloatArray
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_models import SPACE, build_card

PROMPTS = {"query": "query: ", "document": "passage: ", "clustering": "list of "}
TEXTS = ["hello world", "a vector"]
TYPES_AND_PROMPTS = [
    *((input_type, "query") for input_type in ("query", "search_query", "retrieval.query")),
    *(
        (input_type, "document")
        for input_type in ("document", "passage", "search_document", "retrieval.passage")
    ),
    *((input_type, "clustering") for input_type in ("clustering", "separation")),
    ("classification", None),
    ("text-matching", None),
]


@dataclass(frozen=True)
class Route:
    """A route with its body. embedded: the key of the vectors in an answer that is an object."""

    path: str
    inputs: str
    keys: tuple[str, ...] = ()
    body: dict[str, Any] = field(default_factory=dict)


ROUTES = [
    Route("/embed", "inputs"),
    Route("/", "inputs"),
    Route("/v1/embeddings", "input", ("data",)),
    Route("/v2/embed", "texts", ("embeddings", "float")),
    Route("/v1/encode", "inputs", ("dense",)),
]


async def vectors(server: InProcessServer, route: Route, **fields: Any) -> FloatArray:
    answer = await server.client.post(route.path, json={route.inputs: TEXTS, **fields})
    assert answer.status_code == 200, answer.text
    content = answer.json()
    for key in route.keys:
        content = content[key]
    rows = [row["embedding"] if isinstance(row, dict) else row for row in content]
    return np.array(rows, dtype=np.float32)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
@pytest.mark.parametrize("name", ["input_type", "task"])
async def test_each_word_is_the_prompt_of_its_type_on_every_route(route: Route, name: str) -> None:
    async with serve_in_process(card=build_card(prompts=PROMPTS)) as server:
        for input_type, prompt in TYPES_AND_PROMPTS:
            want = await vectors(server, ROUTES[0], prompt_name=prompt)
            np.testing.assert_array_equal(
                await vectors(server, route, **{name: input_type}), want, err_msg=input_type
            )


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_a_prompt_by_its_name_is_taken_on_every_route(route: Route) -> None:
    async with serve_in_process(card=build_card(prompts=PROMPTS)) as server:
        want = await vectors(server, ROUTES[0], prompt_name="clustering")
        np.testing.assert_array_equal(await vectors(server, route, prompt_name="clustering"), want)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
@pytest.mark.parametrize("name", ["input_type", "task"])
async def test_an_unknown_word_is_refused_with_the_list(route: Route, name: str) -> None:
    async with serve_in_process(card=build_card(prompts=PROMPTS)) as server:
        answer = await server.client.post(route.path, json={route.inputs: TEXTS, name: "qurey"})
    assert answer.status_code == 422
    for input_type, _ in TYPES_AND_PROMPTS:
        assert f"'{input_type}'" in answer.text
    assert f"`{name}` must be" in answer.text


MODEL_NAMES = [
    ("tiny:query", "query"),
    ("tiny-query", "query"),
    ("tiny-passage", "document"),
    ("elsewhere/tiny:search_document", "document"),
    (f"tiny:query@{SPACE}", "query"),
    ("tiny", None),
    ("elsewhere/tiny-query", None),
    ("tiny-large", None),
    ("elsewhere/tiny:latest", None),
    ("tiny-v2:query", "query"),
]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
@pytest.mark.parametrize(("model", "prompt"), MODEL_NAMES)
async def test_the_models_name_may_say_it(route: Route, model: str, prompt: str | None) -> None:
    async with serve_in_process(card=build_card(prompts=PROMPTS)) as server:
        want = await vectors(server, ROUTES[0], prompt_name=prompt)
        np.testing.assert_array_equal(await vectors(server, route, model=model), want)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"model": "tiny:qurey"}, "'qurey' behind the name is none of query, ", id="unknown"),
        pytest.param(
            {"model": "elsewhere/tiny:qurey"},
            "'qurey' behind the name is none of query, ",
            id="of another name",
        ),
        pytest.param(
            {"model": "tiny-qurey"}, "'qurey' behind the name is none of query, ", id="unknown in NIM's way"
        ),
        pytest.param(
            {"model": "tiny:query", "input_type": "document"},
            "`model` says query where another field says document",
            id="name and field",
        ),
        pytest.param(
            {"task": "retrieval.query", "input_type": "passage"},
            "`task` says retrieval.query where another field says passage",
            id="two fields",
        ),
    ],
)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_a_request_that_says_two_things_is_refused(
    route: Route, fields: dict[str, str], message: str
) -> None:
    async with serve_in_process(card=build_card(prompts=PROMPTS)) as server:
        answer = await server.client.post(route.path, json={route.inputs: TEXTS, **fields})
    assert answer.status_code == 422
    assert message in answer.text


async def test_two_words_for_the_same_type_are_one() -> None:
    async with serve_in_process(card=build_card(prompts=PROMPTS)) as server:
        want = await vectors(server, ROUTES[0], prompt_name="query")
        got = await vectors(server, ROUTES[2], task="retrieval.query", input_type="search_query")
    np.testing.assert_array_equal(got, want)


async def test_token_ids_of_documents_are_taken_where_documents_have_no_prompt() -> None:
    card = build_card(prompts={"query": "query: "}, default_prompt="query")
    async with serve_in_process(card=card) as server:
        answer = await server.client.post("/embed", json={"inputs": [[9, 10]], "input_type": "document"})
    assert answer.status_code == 200, answer.text


async def test_openai_finds_the_model_by_its_name_with_a_word_behind_it() -> None:
    async with serve_in_process() as server:
        assert (await server.client.get("/v1/models/tiny:query")).json()["id"] == "tiny"
        assert (await server.client.get("/v1/models/other:query")).status_code == 404
        assert (await server.client.get("/v1/models/tiny-large")).status_code == 404
