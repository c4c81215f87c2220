"""The bodies of rankings: both on every path, fields of documents, budgets of tokens, requests that are too large."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.heads.description import ScoreFunction
from embedserve_runtime.scheduling.policy import Limits
from tests.support.in_process_server import serve_in_process
from tests.support.tiny_models import VOCABULARY, build_classifier_card
from tests.support.tiny_runners import build_mean_run

RERANKER = build_classifier_card("LABEL_0", scores=ScoreFunction.SIGMOID)
PATHS = ["/rerank", "/v1/rerank", "/v2/rerank"]
QUERY = "hello"
TEXTS = ["a vector", "world", "list of numbers"]


class Recorded:
    """An engine that keeps the texts of the sequences that it has run."""

    def __init__(self) -> None:
        self.sequences: list[str] = []
        self._run = build_mean_run(1)

    def __call__(self, batch: PackedBatch) -> FloatArray:
        bounds = batch.cu_seqlens.tolist()
        for start, end in pairwise(bounds):
            self.sequences.append(" ".join(VOCABULARY[token] for token in batch.token_ids[start:end]))
        return self._run(batch)


async def post(path: str, body: Any, **options: Any) -> Any:
    async with serve_in_process(**{"card": RERANKER, **options}) as server:
        return await server.client.post(path, json={"query": QUERY, **body})


@pytest.mark.parametrize("path", PATHS)
async def test_the_shape_of_the_body_decides_the_dialect_of_the_answer(path: str) -> None:
    tei = (await post(path, {"texts": TEXTS, "return_text": True})).json()
    cohere = (await post(path, {"documents": TEXTS, "return_documents": True})).json()
    assert [set(item) for item in tei] == [{"index", "score", "text"}] * 3
    assert [(item["index"], item["document"]["text"]) for item in cohere["results"]] == [
        (item["index"], item["text"]) for item in tei
    ]
    assert [item["relevance_score"] for item in cohere["results"]] == pytest.approx(
        [item["score"] for item in tei]
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["texts", "documents"])
async def test_fields_of_one_dialect_hold_for_the_body_of_the_other(path: str, name: str) -> None:
    def scores(content: Any) -> list[tuple[int, float]]:
        items = content if isinstance(content, list) else content["results"]
        return [(item["index"], item.get("score", item.get("relevance_score"))) for item in items]

    raw = scores((await post(path, {name: TEXTS, "raw_scores": True})).json())
    assert any(not 0 < score < 1 for _, score in raw)
    assert scores((await post(path, {name: TEXTS, "raw_scores": True, "top_n": 2})).json()) == raw[:2]
    assert scores((await post(path, {name: TEXTS, "raw_scores": True, "top_k": 1})).json()) == raw[:1]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [{}, {"texts": ["a"], "documents": ["a"]}])
async def test_neither_and_both_are_refused(path: str, body: Any) -> None:
    answer = await post(path, body)
    assert answer.status_code == 422
    assert "give either `texts` or `documents`" in answer.text


@pytest.mark.parametrize("name", ["texts", "documents"])
@pytest.mark.parametrize("path", PATHS)
async def test_an_empty_list_is_named(path: str, name: str) -> None:
    answer = await post(path, {name: []})
    assert answer.status_code == 400
    assert f"`{name}` cannot be empty" in answer.text


@pytest.mark.parametrize("path", PATHS)
async def test_texts_are_refused_by_default_where_the_server_does_not_cut_and_documents_are_cut(
    path: str,
) -> None:
    long = ["hello " * 50]
    card = replace(RERANKER, tokenizer=replace(RERANKER.tokenizer, truncation_side="left"))
    run = Recorded()
    assert (await post(path, {"texts": long, "truncate": False})).status_code == 422
    assert (await post(path, {"documents": long, "truncation": False})).status_code == 422
    assert (await post(path, {"documents": [f"world {long[0]}"]}, card=card, run=run)).status_code == 200
    assert "world" not in run.sequences[-1]


FIELDS = [
    pytest.param(None, "list of numbers", id="the text by default"),
    pytest.param(["title", "text"], "a vector list of numbers", id="in their order"),
    pytest.param(["text", "title"], "list of numbers a vector", id="in another order"),
    pytest.param(["title"], "a vector", id="without the text"),
]


@pytest.mark.parametrize(("fields", "want"), FIELDS)
async def test_the_fields_of_documents_that_are_named_are_ranked(fields: Any, want: str) -> None:
    run = Recorded()
    document = {"text": "list of numbers", "title": "a vector", "page": 5}
    body = {"documents": [document, "world"], "rank_fields": fields, "return_documents": True}
    content = (await post("/v1/rerank", body, run=run)).json()
    assert f"[CLS] hello [SEP] {want} [SEP]" in run.sequences
    returned = {item["index"]: item["document"] for item in content["results"]}
    assert returned == {0: document, 1: {"text": "world"}}


@pytest.mark.parametrize(
    ("documents", "fields", "named"),
    [
        ([{"text": "a"}, {"title": "b"}], None, "`documents.1.text`"),
        (["a", {"text": "b", "title": ["c"]}], ["title"], "`documents.1.title`"),
        ([{"text": "b"}], ["text", "title"], "`documents.0.title`"),
    ],
)
async def test_a_document_without_a_field_that_is_ranked_is_named_with_it(
    documents: Any, fields: Any, named: str
) -> None:
    answer = await post("/v2/rerank", {"documents": documents, "rank_fields": fields})
    assert answer.status_code == 422
    assert f"{named} must be a text or a number" in answer.text


# The model takes 32 tokens, of which a pair has 29 for its texts.
BUDGETS = [
    pytest.param(
        {"query": "hello " * 20, "documents": ["world " * 20], "max_tokens_per_query": 2},
        (2, 20),
        id="the query",
    ),
    pytest.param(
        {"query": "hello " * 20, "documents": ["world " * 20], "max_tokens_per_doc": 3},
        (20, 3),
        id="the document",
    ),
    pytest.param(
        {"query": "hello " * 20, "documents": ["world " * 20], "max_tokens_per_doc": 15},
        (15, 14),
        id="the document still has half of the room",
    ),
    pytest.param(
        {"query": "hello " * 12, "documents": ["world " * 40], "max_tokens_per_query": 100},
        (12, 17),
        id="only the document is cut",
    ),
    pytest.param(
        {"query": "hello " * 40, "documents": ["world"], "max_tokens_per_query": 40},
        (28, 1),
        id="a short document stays whole",
    ),
    pytest.param(
        {"query": "hello " * 40, "documents": ["world " * 40]}, (14, 15), id="without one the longer text"
    ),
]


@pytest.mark.parametrize(("body", "want"), BUDGETS)
async def test_budgets_of_tokens(body: Any, want: tuple[int, int]) -> None:
    run = Recorded()
    assert (await post("/v1/rerank", body, run=run)).status_code == 200
    (sequence,) = run.sequences
    assert (sequence.count("hello"), sequence.count("world")) == want


@pytest.mark.parametrize("name", ["texts", "documents"])
async def test_a_long_query_before_many_documents_is_refused_with_the_number_of_tokens(name: str) -> None:
    run = Recorded()
    body = {"query": "hello " * 25, name: ["world"] * 100}
    answer = await post("/rerank", body, run=run, limits=Limits(256, 2_000, 2_000))
    assert answer.status_code == 422
    assert "100 pairs" in answer.json()["error"]
    assert "28 tokens in each" in answer.json()["error"]
    assert "have at least 2800 tokens; one request may have 2000" in answer.json()["error"]
    assert run.sequences == []


async def test_measures_that_score_does_not_have_are_refused_with_those_that_it_has() -> None:
    async with serve_in_process() as server:
        body = {"query": "a", "documents": ["b"], "weights": {"dense": 1.0, "colbert": 1.0}}
        answer = await server.client.post("/v1/score", json=body)
    assert answer.status_code == 422
    assert answer.json()["message"] == (
        "`weights.colbert` is unknown: there are dense, sparse, multi_vector, cross_encoder"
    )
