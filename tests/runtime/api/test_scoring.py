"""Rerankers, classifiers and sparse models behind each dialect: scores and weights, not only shapes."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ScoreFunction
from tests.support.in_process_server import serve_in_process
from tests.support.tiny_models import (
    CLS,
    SEP,
    SPACE,
    VOCABULARY,
    build_card,
    build_classifier_card,
    build_splade_card,
)
from tests.support.tiny_runners import Run, build_mean_run

RERANKER = build_classifier_card("LABEL_0", scores=ScoreFunction.SIGMOID)
CLASSIFIER = build_classifier_card("bad", "fine", "good")
QUERY, DOCUMENTS = "deep learning", ["a list of numbers", "hello", "vector learning", "hello"]


def ids_of(text: str) -> list[int]:
    return [VOCABULARY.index(word) for word in text.split()]


def logits_of(*sequences: list[int], columns: int) -> FloatArray:
    return build_mean_run(columns)(
        PackedBatch.pack([np.array(sequence, dtype=np.int32) for sequence in sequences])
    )


def pair_logits(query: str, documents: list[str]) -> FloatArray:
    pairs = [[CLS, *ids_of(query), SEP, *ids_of(text), SEP] for text in documents]
    return logits_of(*pairs, columns=1)[:, 0]


def sigmoid(values: FloatArray) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-values)), dtype=np.float32)


async def post(path: str, body: Any, card: ModelCard) -> Any:
    async with serve_in_process(card=card) as server:
        return await server.client.post(path, json=body)


def ranking(scores: FloatArray) -> list[int]:
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))


@pytest.mark.parametrize("raw", [False, True])
async def test_rerank_gives_the_models_scores_of_the_pairs(raw: bool) -> None:
    body = {"query": QUERY, "texts": DOCUMENTS, "raw_scores": raw, "return_text": True}
    content = (await post("/rerank", body, RERANKER)).json()
    logits = pair_logits(QUERY, DOCUMENTS)
    want_scores = logits if raw else sigmoid(logits)
    assert [item["index"] for item in content] == ranking(want_scores)
    for item in content:
        assert item["score"] == pytest.approx(want_scores[item["index"]], rel=1e-5)
        assert item["text"] == DOCUMENTS[item["index"]]


# Documents of 1 to 6 words, the shortest first, make pairs of 6 to 11 tokens.
GROWING = [" ".join(["hello"] * words) for words in range(1, 7)]
STEEP = {
    "above 17, where the sigmoid of float32 is 1": 3.0,
    "below -17": -3.0,
    "above 37, as that of float64": 10.0,
}


def logits_by_length(step: float) -> Run:
    return lambda batch: np.asarray(step * batch.lengths[:, None], dtype=np.float32)


@pytest.mark.parametrize("step", STEEP.values(), ids=STEEP)
async def test_documents_are_ranked_by_logit_where_their_scores_are_the_same(step: float) -> None:
    want = [*range(len(GROWING))][:: -1 if step > 0 else 1]
    async with serve_in_process(logits_by_length(step), card=RERANKER) as server:
        tei = await server.client.post("/rerank", json={"query": QUERY, "texts": GROWING})
        best = {"query": QUERY, "documents": GROWING, "top_n": 3}
        cohere = [await server.client.post(f"/v{version}/rerank", json=best) for version in (1, 2)]
    assert [item["index"] for item in tei.json()] == want
    for answer in cohere:
        assert [item["index"] for item in answer.json()["results"]] == want[:3]


async def test_scores_near_0_and_1_differ_as_their_logits_do() -> None:
    async with serve_in_process(logits_by_length(3), card=RERANKER) as server:
        near_1 = (await server.client.post("/rerank", json={"query": QUERY, "texts": GROWING})).json()
    async with serve_in_process(logits_by_length(-3), card=RERANKER) as server:
        near_0 = (await server.client.post("/rerank", json={"query": QUERY, "texts": GROWING})).json()
    for item in near_0:
        logit = -3.0 * (6 + item["index"])
        assert item["score"] == pytest.approx(np.exp(logit) / (1 + np.exp(logit)), rel=1e-9)
    assert len({item["score"] for item in near_1}) == len(GROWING)


@pytest.mark.parametrize("scores", [ScoreFunction.SOFTMAX, ScoreFunction.SIGMOID])
async def test_labels_are_ranked_by_logit_where_their_scores_are_the_same(scores: ScoreFunction) -> None:
    steep = np.array([40.0, 60.0, -900.0, -800.0], dtype=np.float32)
    card = build_classifier_card("a", "b", "c", "d", scores=scores)
    async with serve_in_process(lambda batch: np.tile(steep, (len(batch.lengths), 1)), card=card) as server:
        (labels,) = (await server.client.post("/predict", json={"inputs": [["hello"]]})).json()
    assert [entry["label"] for entry in labels] == ["b", "a", "d", "c"]


@pytest.mark.parametrize(("path", "version"), [("/v1/rerank", "1"), ("/v2/rerank", "2")])
async def test_cohere_and_jina_rank_alike_and_find_their_own_counts(path: str, version: str) -> None:
    body = {
        "model": "any",
        "query": QUERY,
        "documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}, *DOCUMENTS[2:]],
        "top_n": 3,
        "return_documents": True,
    }
    answer = await post(path, body, RERANKER)
    content = answer.json()
    want_scores = sigmoid(pair_logits(QUERY, DOCUMENTS))
    assert [item["index"] for item in content["results"]] == ranking(want_scores)[:3]
    for item in content["results"]:
        assert item["relevance_score"] == pytest.approx(want_scores[item["index"]], rel=1e-5)
        assert item["document"] == {"text": DOCUMENTS[item["index"]]}
    tokens = sum(3 + 2 + len(text.split()) for text in DOCUMENTS)
    assert content["meta"] == {
        "api_version": {"version": version},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": tokens},
    }
    assert content["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (content["model"], content["id"]) == ("tiny", answer.headers["x-request-id"])
    assert answer.headers["x-embedserve-vector-space"] == SPACE


async def test_results_come_without_their_texts_unless_asked_for() -> None:
    content = (await post("/v2/rerank", {"query": "a", "documents": ["b"]}, RERANKER)).json()
    assert content["results"] == [{"index": 0, "relevance_score": content["results"][0]["relevance_score"]}]


async def test_documents_without_a_text_are_returned_as_they_were_sent() -> None:
    documents = [{"title": "hello", "year": 2020}]
    body = {"query": "a", "documents": documents, "rank_fields": ["title"], "return_documents": True}
    content = (await post("/v2/rerank", body, RERANKER)).json()
    assert [item["document"] for item in content["results"]] == documents


async def test_documents_are_cut_to_the_tokens_asked_for_before_they_are_paired() -> None:
    body = {"query": QUERY, "documents": ["hello world is of", "a"], "max_tokens_per_doc": 2}
    content = (await post("/v2/rerank", body, RERANKER)).json()
    want_scores = sigmoid(pair_logits(QUERY, ["hello world", "a"]))
    for item in content["results"]:
        assert item["relevance_score"] == pytest.approx(want_scores[item["index"]], rel=1e-5)


RANKING_REFUSED = [
    pytest.param({"documents": []}, RERANKER, 400, "`documents` cannot be empty", id="no documents"),
    pytest.param({"top_n": 0}, RERANKER, 422, "`top_n` must be at least 1", id="none of the best"),
    pytest.param({"max_chunks_per_doc": 3}, RERANKER, 422, "`max_tokens_per_doc`", id="chunks"),
    pytest.param({"instruction": "rank"}, RERANKER, 422, "takes no `instruction`", id="an instruction"),
    pytest.param({}, CLASSIFIER, 424, "it has 3 labels; use /predict", id="a classifier"),
    pytest.param({}, build_card(), 424, "not a re-ranker model", id="an embedding model"),
]


@pytest.mark.parametrize(("change", "card", "want_status", "want_message"), RANKING_REFUSED)
async def test_what_cannot_be_ranked_is_refused(
    change: dict[str, Any], card: ModelCard, want_status: int, want_message: str
) -> None:
    answer = await post("/v2/rerank", {"query": "a", "documents": ["b"]} | change, card)
    assert answer.status_code == want_status
    assert want_message in answer.json()["message"]


async def test_predict_gives_each_label_its_share() -> None:
    batch = [["hello"], ["hello", "a vector"]]
    content = (await post("/predict", {"inputs": batch}, CLASSIFIER)).json()
    sequences = [[CLS, *ids_of("hello"), SEP], [CLS, *ids_of("hello"), SEP, *ids_of("a vector"), SEP]]
    powers = np.exp(logits_of(*sequences, columns=3))
    for item, shares in zip(content, powers / powers.sum(axis=1, keepdims=True), strict=True):
        got = {entry["label"]: entry["score"] for entry in item}
        assert got == pytest.approx(dict(zip(("bad", "fine", "good"), shares, strict=True)), rel=1e-5)


def weights_of(text: str) -> dict[int, float]:
    row = logits_of([CLS, *ids_of(text), SEP], columns=len(VOCABULARY))[0]
    return {index: float(value) for index, value in enumerate(row) if value > 0}


async def test_embed_sparse_gives_every_entry_above_0() -> None:
    content = (await post("/embed_sparse", {"inputs": ["hello", "a vector"]}, build_splade_card())).json()
    for item, text in zip(content, ("hello", "a vector"), strict=True):
        assert {entry["index"]: entry["value"] for entry in item} == pytest.approx(weights_of(text), rel=1e-5)


async def test_native_sparse_vectors_with_the_largest_entries_and_their_texts() -> None:
    body = {"inputs": ["hello"], "top_k": 4, "threshold": 0.1, "sparse_tokens": True}
    content = (await post("/v1/encode", body, build_splade_card())).json()
    (vector,) = content["sparse"]
    above = {index: value for index, value in weights_of("hello").items() if value > 0.1}
    want_indices = sorted(sorted(above, key=lambda index: -above[index])[:4])
    assert vector["indices"] == want_indices
    assert vector["values"] == pytest.approx([above[index] for index in want_indices], rel=1e-5)
    assert vector["tokens"] == [VOCABULARY[index] for index in want_indices]
    assert "dense" not in content


async def test_native_sparse_vectors_as_base64() -> None:
    body = {"inputs": "hello", "outputs": ["sparse"], "encoding": "base64", "dtype": "float16"}
    (vector,) = (await post("/v1/encode", body, build_splade_card())).json()["sparse"]
    want_weights = weights_of("hello")
    assert np.frombuffer(base64.b64decode(vector["indices"]), "<i4").tolist() == list(want_weights)
    values = np.frombuffer(base64.b64decode(vector["values"]), "<f2")
    np.testing.assert_allclose(values, list(want_weights.values()), rtol=1e-3)


NOT_ENCODED = [
    pytest.param({"outputs": ["sparse"]}, build_card(), "no sparse vectors", id="sparse of a dense model"),
    pytest.param(
        {"outputs": ["dense"]}, build_splade_card(), "no dense vectors", id="dense of a sparse model"
    ),
    pytest.param({"outputs": ["multi_vector"]}, build_card(), "no multi-vectors", id="multi-vectors"),
    pytest.param({}, RERANKER, "use /rerank", id="a reranker"),
]


@pytest.mark.parametrize(("change", "card", "want_message"), NOT_ENCODED)
async def test_outputs_that_the_model_does_not_have_are_424(
    change: dict[str, Any], card: ModelCard, want_message: str
) -> None:
    answer = await post("/v1/encode", {"inputs": "hello"} | change, card)
    assert answer.status_code == 424
    assert want_message in answer.json()["message"]
