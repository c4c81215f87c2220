"""A model with adapters for several tasks, over HTTP: the task that is served answers, others are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedserve_runtime.runners.base import Runner
from tests.census.dense_folders import save_dense
from tests.census.tokenizers import MAX_TOKENS
from tests.runtime.api.test_input_types import ROUTES, Route, vectors
from tests.runtime.api.test_served_models import model_in
from tests.support.in_process_server import serve_in_process


def save_published(folder: Path) -> Path:
    """The published folder of a model that takes so many tokens that its prompts leave room for a text."""
    return save_dense("xlm-roberta-flash-adapters", "mean normalize", folder, max_length=MAX_TOKENS)[1]


@pytest.fixture(scope="module")
def retrieval(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return model_in(save_published(tmp_path_factory.mktemp("jina")), adapters=["retrieval"])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_queries_and_documents_go_through_their_adapters(retrieval: Runner, route: Route) -> None:
    async with serve_in_process(model=retrieval) as server:
        documents = await vectors(server, ROUTES[0])
        queries = await vectors(server, ROUTES[0], prompt_name="retrieval.query")
        assert np.abs(queries - documents).max() > 0.01
        for fields, want in (
            ({"task": "retrieval.query"}, queries),
            ({"input_type": "search_query"}, queries),
            ({"prompt_name": "retrieval.query"}, queries),
            ({"task": "retrieval.passage"}, documents),
            ({"prompt_name": "retrieval.passage"}, documents),
            ({}, documents),
        ):
            np.testing.assert_allclose(await vectors(server, route, **fields), want, atol=1e-6)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
@pytest.mark.parametrize("fields", [{"task": "text-matching"}, {"input_type": "classification"}])
async def test_a_task_that_is_not_served_is_refused_with_the_list(
    retrieval: Runner, route: Route, fields: dict[str, Any]
) -> None:
    async with serve_in_process(model=retrieval) as server:
        answer = await server.client.post(route.path, json={route.inputs: ["hello"], **fields})
    assert answer.status_code == 422
    assert "retrieval, separation, classification, text-matching" in answer.text
    assert "model.adapters" in answer.text


async def test_the_prompt_of_a_task_that_is_not_served_is_unknown(retrieval: Runner) -> None:
    async with serve_in_process(model=retrieval) as server:
        body = {"inputs": ["hello"], "prompt_name": "separation"}
        answer = await server.client.post("/embed", json=body)
    assert answer.status_code == 422
    assert 'Available prompts: ["retrieval.query", "retrieval.passage"]' in answer.json()["error"]


async def test_plain_weights_take_words_of_roles_and_no_task(tmp_path: Path) -> None:
    async with serve_in_process(model=model_in(save_published(tmp_path))) as server:
        plain = await vectors(server, ROUTES[0])
        np.testing.assert_array_equal(await vectors(server, ROUTES[0], input_type="query"), plain)
        answer = await server.client.post("/v1/embeddings", json={"input": "a", "task": "retrieval.query"})
    assert answer.status_code == 422


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runner]:
    """The model with two tasks in one process, and with each alone."""
    folder = save_published(tmp_path_factory.mktemp("several"))
    served = {
        "both": ["text-matching", "retrieval"],
        "retrieval": ["retrieval"],
        "text-matching": ["text-matching"],
    }
    return {name: model_in(folder, adapters=tasks) for name, tasks in served.items()}


ASKED: dict[str, tuple[dict[str, str], str, dict[str, str]]] = {
    "nothing": ({}, "text-matching", {}),
    "a task": ({"task": "text-matching"}, "text-matching", {}),
    "queries": ({"task": "retrieval.query"}, "retrieval", {"task": "retrieval.query"}),
    "documents": ({"task": "retrieval.passage"}, "retrieval", {"task": "retrieval.passage"}),
    "a type of inputs": ({"input_type": "search_query"}, "retrieval", {"input_type": "search_query"}),
    "queries by their role": ({"input_type": "query"}, "retrieval", {"task": "retrieval.query"}),
    "documents by their role": ({"input_type": "passage"}, "retrieval", {"task": "retrieval.passage"}),
    "a role and its prompt": (
        {"input_type": "query", "prompt_name": "retrieval.query"},
        "retrieval",
        {"task": "retrieval.query"},
    ),
    "a prompt": ({"prompt_name": "retrieval.query"}, "retrieval", {"task": "retrieval.query"}),
}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_a_request_chooses_its_task_and_learns_its_vector_space(
    several: dict[str, Runner], route: Route
) -> None:
    async with (
        serve_in_process(model=several["both"]) as server,
        serve_in_process(model=several["retrieval"]) as retrieval,
        serve_in_process(model=several["text-matching"]) as matching,
    ):
        alone = {"retrieval": retrieval, "text-matching": matching}
        for fields, task, same in ASKED.values():
            # All at once, so that a batch has sequences of several tasks.
            got, _ = await asyncio.gather(
                vectors(server, route, **fields), vectors(server, route, task="retrieval.query")
            )
            want = await vectors(alone[task], route, **same)
            np.testing.assert_allclose(got, want, atol=1e-6)
            answer = await server.client.post(route.path, json={route.inputs: ["a"], **fields})
            assert answer.headers["x-embedserve-vector-space"] == several[task].card.vector_space
        refused = await server.client.post(route.path, json={route.inputs: ["a"], "task": "separation"})
    assert refused.status_code == 422
    assert "it has text-matching, retrieval" in refused.text


async def test_a_vector_space_is_expected_of_the_task_that_is_asked_for(several: dict[str, Runner]) -> None:
    headers = {"x-embedserve-vector-space": several["retrieval"].card.vector_space}
    async with serve_in_process(model=several["both"]) as server:
        answers = [
            await server.client.post("/embed", json={"inputs": "a", **fields}, headers=headers)
            for fields in ({"task": "retrieval.query"}, {})
        ]
    assert [answer.status_code for answer in answers] == [200, 409]


async def test_instances_of_two_tasks_are_refused_since_one_header_tells_their_space(
    several: dict[str, Runner],
) -> None:
    instances = [{"inputs": "a", "task": task} for task in ("retrieval.query", "text-matching")]
    async with serve_in_process(model=several["both"]) as server:
        answer = await server.client.post("/vertex", json={"instances": instances[:1]})
        two = await server.client.post("/vertex", json={"instances": instances})
    assert answer.headers["x-embedserve-vector-space"] == several["retrieval"].card.vector_space
    assert (answer.status_code, two.status_code) == (200, 422)


async def test_info_tells_the_tasks_and_their_vector_spaces(several: dict[str, Runner]) -> None:
    async with serve_in_process(model=several["both"]) as server:
        content = (await server.client.get("/info")).json()
    assert content["adapter_task"] == "text-matching"
    assert content["adapter_tasks"] == ["retrieval", "separation", "classification", "text-matching"]
    assert content["vector_spaces"] == {
        task: several[task].card.vector_space for task in ("text-matching", "retrieval")
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"task": "retrieval.passage", "prompt_name": "retrieval.query"},
        {"input_type": "search_query", "prompt_name": "retrieval.passage"},
        {"input_type": "document", "prompt_name": "retrieval.query"},
    ],
)
async def test_the_prompt_of_queries_is_not_read_by_the_weights_for_documents(
    several: dict[str, Runner], fields: dict[str, str]
) -> None:
    async with serve_in_process(model=several["both"]) as server:
        for route in ROUTES:
            answer = await server.client.post(route.path, json={route.inputs: ["hello"], **fields})
            assert answer.status_code == 422, route
            assert "`prompt_name` says" in answer.text


SCORED: dict[str, tuple[dict[str, str], str]] = {
    "nothing": ({}, "text-matching"),
    "a task": ({"task": "text-matching"}, "text-matching"),
    "the task of queries and documents": ({"task": "retrieval.query"}, "retrieval"),
    "the task by its other word": ({"task": "search_document"}, "retrieval"),
    "a prompt": ({"query_prompt_name": "retrieval.query"}, "retrieval"),
}


async def test_scores_are_those_of_the_task_that_is_asked_for(several: dict[str, Runner]) -> None:
    body = {"query": "hello", "documents": ["hello there", "something else"]}
    async with serve_in_process(model=several["both"]) as server:
        for name, (fields, task) in SCORED.items():
            answer = await server.client.post("/v1/score", json=body | fields)
            async with serve_in_process(model=several[task]) as alone:
                want = (await alone.client.post("/v1/score", json=body)).json()
            np.testing.assert_allclose(answer.json()["scores"], want["scores"], atol=1e-6, err_msg=name)
            assert answer.json()["vector_space"] == want["vector_space"], name
            assert answer.headers["x-embedserve-vector-space"] == want["vector_space"], name


@pytest.mark.parametrize("task", ["separation", "query"])
async def test_scores_by_a_task_that_is_not_served_or_by_a_role_are_refused(
    several: dict[str, Runner], task: str
) -> None:
    body = {"query": "hello", "documents": ["hello there"], "task": task}
    async with serve_in_process(model=several["both"]) as server:
        answer = await server.client.post("/v1/score", json=body)
    assert answer.status_code == 422
    assert task in answer.text
