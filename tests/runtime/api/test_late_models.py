"""Multi-vector models on the routes: ranking by MaxSim, scores, queries' tokens, pooled documents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.runners.base import Runner
from tests.runtime.heads.test_late_interaction import Kind, pylate_with_unused, saved
from tests.runtime.rpc.rpc_kit import served
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tolerances import FP32_MAX_ABS_DIFF

QUERY = "what is a vector?"
DOCUMENTS = ["a list of numbers, in order", "deep learning", "what is a vector? this one."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    return saved(tmp_path_factory.mktemp("colbert"), Kind(modules=(), change=pylate_with_unused))


@pytest.fixture(scope="module")
def oracle(folder: Path) -> MultiVectorEncoder:
    return MultiVectorEncoder(str(folder), device="cpu")


@pytest.fixture(scope="module")
def runner(folder: Path) -> Runner:
    return load_runner(RuntimeConfig.model_validate({"model": {"source": str(folder)}}))


@pytest.fixture
async def server(runner: Runner) -> AsyncIterator[InProcessServer]:
    async with serve_in_process(model=runner) as in_process:
        yield in_process


def maxsims(oracle: MultiVectorEncoder) -> list[float]:
    """The sums, as sentence-transformers has them."""
    similarities = oracle.similarity(oracle.encode_query([QUERY]), oracle.encode_document(DOCUMENTS))
    sums: list[float] = similarities[0].tolist()
    return sums


async def test_every_route_ranks_documents_by_maxsim(
    server: InProcessServer, oracle: MultiVectorEncoder
) -> None:
    sums = maxsims(oracle)
    means = [total / 24 for total in sums]  # as many vectors as the query is filled up to
    for path in ("/v1/rerank", "/v2/rerank"):
        answer = await server.client.post(path, json={"query": QUERY, "documents": DOCUMENTS})
        results = answer.json()["results"]
        got = {item["index"]: item["relevance_score"] for item in results}
        assert got == pytest.approx(dict(enumerate(means)), abs=FP32_MAX_ABS_DIFF)
        assert [item["index"] for item in results] == np.argsort(-np.array(sums)).tolist()
    for raw, want in ((False, means), (True, sums)):
        body = {"query": QUERY, "texts": DOCUMENTS, "raw_scores": raw}
        ranked = (await server.client.post("/rerank", json=body)).json()
        scores = {item["index"]: item["score"] for item in ranked}
        assert scores == pytest.approx(dict(enumerate(want)), abs=24 * FP32_MAX_ABS_DIFF)
    body = {"query": QUERY, "documents": DOCUMENTS}
    scored = (await server.client.post("/v1/score", json=body)).json()
    assert scored["measures"]["multi_vector"] == pytest.approx(means, abs=FP32_MAX_ABS_DIFF)


async def test_a_batch_of_rankings_is_answered_as_one_of_a_reranker(server: InProcessServer) -> None:
    body = {"query": QUERY, "texts": DOCUMENTS}
    alone = (await server.client.post("/rerank", json=body)).json()
    by_instances = await server.client.post("/vertex", json={"instances": [body, body]})
    assert by_instances.json() == {"predictions": [alone, alone]}


async def test_grpc_ranks_texts_of_several_queries_and_says_that_it_does(
    runner: Runner, oracle: MultiVectorEncoder
) -> None:
    path = "tei.v1.Rerank/RerankStream"
    pairs = [(QUERY, DOCUMENTS[0]), ("why", DOCUMENTS[1]), (QUERY, DOCUMENTS[2])]
    async with served(model=runner) as server:
        message = server.client.message
        fields = [{"query": query, "text": text, "raw_scores": True} for query, text in pairs]
        answer = await server.client.call(path)(message(path, field) for field in fields)
        health = await server.client.ask("grpc.health.v1.Health/Check", service="tei.v1.Rerank")
    want = oracle.similarity_pairwise(
        oracle.encode_query([query for query, _ in pairs]),
        oracle.encode_document([text for _, text in pairs]),
    )
    got = {rank.index: rank.score for rank in answer.ranks}
    assert got == pytest.approx(dict(enumerate(want.tolist())), abs=24 * FP32_MAX_ABS_DIFF)
    assert health.status == 1


async def test_inputs_are_documents_unless_the_request_says_queries(
    server: InProcessServer, oracle: MultiVectorEncoder
) -> None:
    async def vectors(**body: Any) -> Any:
        answer = await server.client.post("/v1/encode", json={"inputs": [QUERY]} | body)
        return answer.json()["multi_vector"][0]

    as_document, as_query = oracle.encode_document([QUERY])[0], oracle.encode_query([QUERY])[0]
    for body in ({}, {"input_type": "document"}, {"prompt_name": "document"}):
        np.testing.assert_allclose(await vectors(**body), as_document, atol=FP32_MAX_ABS_DIFF)
    for body in ({"input_type": "query"}, {"prompt_name": "query"}):
        np.testing.assert_allclose(await vectors(**body), as_query, atol=FP32_MAX_ABS_DIFF)


async def test_tokens_of_a_query_are_those_that_its_vectors_are_of(server: InProcessServer) -> None:
    body = {"inputs": [QUERY], "outputs": ["tokens", "multi_vector"], "input_type": "query"}
    content = (await server.client.post("/v1/encode", json=body)).json()
    texts = [token["text"] for token in content["tokens"][0]]
    assert texts[:4] == ["[CLS]", "[unused0]", "find", ":"]
    assert texts[-1] == "[MASK]"
    assert content["token_counts"] == [24] == [len(texts)] == [len(content["multi_vector"][0])]


async def test_a_request_has_its_documents_pooled(server: InProcessServer) -> None:
    """The oracle pools the server's own vectors: those of a random model lie so close together that the last digit of
    another library's decides which are merged."""
    pooling = HierarchicalTokenPooling(2.0)
    body = {"inputs": DOCUMENTS, "input_type": "document"}
    whole = (await server.client.post("/v1/encode", json=body)).json()["multi_vector"]
    pooled = (await server.client.post("/v1/encode", json={**body, "pool_factor": 2})).json()["multi_vector"]
    for ours, vectors in zip(map(np.array, pooled), whole, strict=True):
        want = pooling.pool_one(torch.tensor(vectors)).numpy()
        assert len(vectors) > len(want) > 1
        assert ours.shape == want.shape
        ordered = ours[ours[:, 0].argsort()] - want[want[:, 0].argsort()]
        assert np.abs(ordered).max() <= FP32_MAX_ABS_DIFF


async def test_grpc_pools_documents_as_the_http_route_does(runner: Runner) -> None:
    path = "embedserve.v1.Embeddings/Encode"
    async with served(model=runner) as server:
        fields: dict[str, Any] = {"texts": DOCUMENTS, "input_type": "INPUT_TYPE_DOCUMENT", "pool_factor": 2}
        answer = await server.client.ask(path, **fields)
        body = {"inputs": DOCUMENTS, "pool_factor": 2, "input_type": "document"}
        want = (await server.bench.client.post("/v1/encode", json=body)).json()["multi_vector"]
    for matrix, rows in zip(answer.multi_vector, want, strict=True):
        got = np.frombuffer(matrix.values, dtype="<f4").reshape(matrix.rows, matrix.columns)
        np.testing.assert_array_equal(got, np.array(rows, dtype=np.float32))
