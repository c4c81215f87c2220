"""A model with adapters for several tasks, over gRPC: the same tasks, vectors and spaces as over HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grpc import StatusCode

from embedserve_runtime.runners.base import Runner
from tests.runtime.api.test_adapter_tasks import save_published
from tests.runtime.api.test_served_models import model_in
from tests.runtime.rpc.rpc_kit import served

ENCODE, SCORE = "embedserve.v1.Embeddings/Encode", "embedserve.v1.Embeddings/Score"
TEXT = "hello there"
DOCUMENTS = ["hello", "something else"]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = save_published(tmp_path_factory.mktemp("several"))
    return model_in(folder, adapters=["text-matching", "retrieval"])


# Fields of Encode, and of the body of the HTTP route that asks the same.
ENCODED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "a task": ({"task": "text-matching"}, {"task": "text-matching"}),
    "queries": ({"task": "retrieval.query"}, {"task": "retrieval.query"}),
    "queries by their role": ({"input_type": "INPUT_TYPE_QUERY"}, {"input_type": "query"}),
    "a prompt": ({"prompt_name": "retrieval.query"}, {"prompt_name": "retrieval.query"}),
}


@pytest.mark.parametrize(("fields", "body"), ENCODED.values(), ids=ENCODED)
async def test_vectors_and_space_are_those_of_the_http_route(
    several: Runner, fields: dict[str, Any], body: dict[str, Any]
) -> None:
    async with served(model=several) as server:
        answer = await server.client.ask(ENCODE, texts=[TEXT], **fields)
        want = (await server.bench.client.post("/v1/encode", json={"inputs": [TEXT]} | body)).json()
    np.testing.assert_allclose(np.frombuffer(answer.dense.values, "<f4"), want["dense"][0], atol=1e-6)
    assert answer.vector_space == want["vector_space"]


@pytest.mark.parametrize(
    "fields", [{}, {"task": "retrieval.query"}, {"query_prompt_name": "retrieval.query"}]
)
async def test_scores_are_those_of_the_http_route(several: Runner, fields: dict[str, Any]) -> None:
    body = {"query": TEXT, "documents": DOCUMENTS, **fields}
    async with served(model=several) as server:
        answer = await server.client.ask(SCORE, **body)
        want = (await server.bench.client.post("/v1/score", json=body)).json()
    np.testing.assert_allclose(answer.scores, want["scores"], atol=1e-6)
    assert answer.vector_space == want["vector_space"]


async def test_teis_own_call_chooses_by_the_name_of_a_prompt(several: Runner) -> None:
    async with served(model=several) as server:
        body: dict[str, Any] = {"inputs": TEXT, "prompt_name": "retrieval.query", "truncate": True}
        answer = await server.client.ask("tei.v1.Embed/Embed", **body)
        want = await server.bench.client.post("/embed", json=body)
    np.testing.assert_allclose(answer.embeddings, want.json()[0], atol=1e-6)


@pytest.mark.parametrize("task", ["separation", "nonsense"])
@pytest.mark.parametrize("call", [ENCODE, SCORE])
async def test_a_task_that_is_not_served_is_refused(several: Runner, call: str, task: str) -> None:
    fields = {"texts": [TEXT]} if call == ENCODE else {"query": TEXT, "documents": DOCUMENTS}
    async with served(model=several) as server:
        status, message, _ = await server.client.refusal(call, **fields, task=task)
    assert status is StatusCode.INVALID_ARGUMENT
    assert task in message
