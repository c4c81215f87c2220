"""`embedserve.v1` against the native HTTP routes of the same server: the same bytes, without base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from grpc import StatusCode

from embedserve_runtime.model.ranges import Ranges
from tests.runtime.rpc.rpc_kit import served
from tests.support.in_process_server import serve_in_process
from tests.support.tiny_models import SPACE, build_card, build_classifier_card, build_splade_card

ENCODE, SCORE = "embedserve.v1.Embeddings/Encode", "embedserve.v1.Embeddings/Score"
CARD = build_card(prompts={"query": "query: "})
TEXTS = ["hello world", "a list of numbers"]
PRECISIONS = ("float32", "float16", "int8", "uint8", "binary", "ubinary")


@pytest.mark.parametrize("precision", PRECISIONS)
async def test_dense_bytes_are_those_of_the_http_route(precision: str) -> None:
    async with served(card=CARD) as server:
        answer = await server.client.ask(ENCODE, texts=TEXTS, precision=f"PRECISION_{precision.upper()}")
        body = {"inputs": TEXTS, "dtype": precision, "encoding": "base64"}
        want = (await server.bench.client.post("/v1/encode", json=body)).json()
    assert answer.dense.values == b"".join(map(base64.b64decode, want["dense"]))
    assert answer.dense.rows == 2
    assert list(np.frombuffer(answer.scales, dtype="<f4")) == pytest.approx(want.get("scales", []))
    assert (answer.model, answer.vector_space) == ("tiny", SPACE)
    assert list(answer.token_counts) == want["token_counts"]
    assert answer.effort.total_seconds >= answer.effort.engine_seconds > 0


# Fields beside the texts, and the body of the HTTP route that asks the same.
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a prompt by name": ({"prompt_name": "query"}, {"prompt_name": "query"}),
    "a prompt's text": ({"prompt": "passage: "}, {"prompt": "passage: "}),
    "queries": ({"input_type": "INPUT_TYPE_QUERY"}, {"input_type": "query"}),
    "not normalized": ({"normalize": False}, {"normalize": False}),
    "fewer dimensions": ({"dimensions": 3}, {"dimensions": 3}),
}


@pytest.mark.parametrize(("fields", "body"), ASKED.values(), ids=ASKED)
async def test_options_mean_what_they_mean_on_the_http_route(
    fields: Mapping[str, Any], body: dict[str, Any]
) -> None:
    async with served(card=CARD) as server:
        answer = await server.client.ask(ENCODE, texts=TEXTS, **fields)
        want = (await server.bench.client.post("/v1/encode", json={"inputs": TEXTS} | body)).json()
    matrix = answer.dense
    got = np.frombuffer(matrix.values, dtype="<f4").reshape(matrix.rows, matrix.columns)
    assert got.tolist() == np.array(want["dense"], dtype=np.float32).tolist()


async def test_several_outputs_come_from_one_run_of_the_engine() -> None:
    outputs = ["OUTPUT_DENSE", "OUTPUT_HIDDEN"]
    async with served(card=CARD) as server:
        answer = await server.client.ask(ENCODE, texts=TEXTS, outputs=outputs, precision="PRECISION_FLOAT16")
        runs = server.bench.get_metric("embedserve_engine_seconds_count")
        body = {"inputs": TEXTS, "outputs": ["hidden"], "dtype": "float16", "encoding": "base64"}
        want = (await server.bench.client.post("/v1/encode", json=body)).json()
    assert runs == 1
    assert [base64.b64encode(matrix.values).decode() for matrix in answer.hidden] == want["hidden"]
    assert [(matrix.rows, matrix.columns) for matrix in answer.hidden] == [
        (count, 8) for count in answer.token_counts
    ]
    assert answer.dense.rows == 2
    assert not answer.sparse


async def test_sparse_vectors_come_as_indices_and_weights() -> None:
    async with served(card=build_splade_card()) as server:
        answer = await server.client.ask(ENCODE, texts=TEXTS, top_k=3, threshold=0.1)
        body = {"inputs": TEXTS, "top_k": 3, "threshold": 0.1}
        want = (await server.bench.client.post("/v1/encode", json=body)).json()["sparse"]
    for got, want_vector in zip(answer.sparse, want, strict=True):
        assert np.frombuffer(got.indices, dtype="<u4").tolist() == want_vector["indices"]
        assert np.frombuffer(got.values, dtype="<f4").tolist() == pytest.approx(want_vector["values"])


RANGES = {"min": [-0.3] * 8, "max": [0.2] * 7 + [-0.3]}


@pytest.mark.parametrize("precision", ["int8", "uint8"])
async def test_ranges_of_the_request_or_the_folder_quantise_as_on_the_http_route(precision: str) -> None:
    stored = Ranges(tuple(RANGES["min"]), tuple(RANGES["max"]))
    async with served(card=replace(CARD, ranges=stored)) as server:
        ask: dict[str, Any] = {"texts": TEXTS, "precision": f"PRECISION_{precision.upper()}"}
        answers = [
            await server.client.ask(ENCODE, **ask, **fields)
            for fields in ({"ranges": RANGES}, {"stored_ranges": True})
        ]
        body = {"inputs": TEXTS, "dtype": precision, "encoding": "base64", "ranges": RANGES}
        want = (await server.bench.client.post("/v1/encode", json=body)).json()
    for answer in answers:
        assert answer.dense.values == b"".join(map(base64.b64decode, want["dense"]))
        assert not answer.scales


SPANS = [[(0, 5), (0, 11)], [], [(2, 6)]]
LONG = ["hello world", "a vector", "a list of numbers"]


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({}, {}),
        ({"outputs": ["OUTPUT_DENSE"]}, {"outputs": ["dense"]}),
        (
            {"precision": "PRECISION_INT8", "ranges": RANGES},
            {"dtype": "int8", "ranges": RANGES},
        ),
    ],
    ids=["alone", "beside vectors of the texts", "quantized by ranges"],
)
async def test_parts_of_a_text_get_the_vectors_of_the_http_route(
    fields: dict[str, Any], body: dict[str, Any]
) -> None:
    spans = [{"spans": [{"start": start, "end": end} for start, end in span]} for span in SPANS]
    async with served(card=CARD) as server:
        answer = await server.client.ask(ENCODE, texts=LONG, spans=spans, **fields)
        request = {"inputs": LONG, "spans": SPANS, "encoding": "base64"} | body
        want = (await server.bench.client.post("/v1/encode", json=request)).json()
    assert [(chunk.rows, chunk.columns) for chunk in answer.chunks] == [(2, 8), (0, 8), (1, 8)]
    for chunks, theirs in zip(answer.chunks, want["chunks"], strict=True):
        assert chunks.values == b"".join(map(base64.b64decode, theirs))
    assert answer.HasField("dense") == ("dense" in want)


async def test_token_ids_are_used_as_they_are() -> None:
    async with served(card=CARD) as server:
        answer = await server.client.ask(ENCODE, token_ids=[{"ids": [2, 9, 3]}, {"ids": [9]}])
        want = (await server.bench.client.post("/embed", json={"inputs": [[2, 9, 3], [9]]})).json()
    got = np.frombuffer(answer.dense.values, dtype="<f4").reshape(2, 8)
    assert got.tolist() == np.array(want, dtype=np.float32).tolist()


async def test_a_stream_of_requests_is_answered_in_order() -> None:
    async with served(card=CARD) as server:
        requests = [{"texts": TEXTS[: 1 + index % 2]} for index in range(30)]
        answers = await server.client.stream(f"{ENCODE}Stream", requests)
    assert [answer.dense.rows for answer in answers] == [1 + index % 2 for index in range(30)]


REFUSED: dict[str, tuple[dict[str, Any], StatusCode, str]] = {
    "no inputs": ({}, StatusCode.INVALID_ARGUMENT, "list of inputs is empty"),
    "both kinds of inputs": (
        {"texts": ["a"], "token_ids": [{"ids": [1]}]},
        StatusCode.INVALID_ARGUMENT,
        "either `texts` or `token_ids`",
    ),
    "an output that the enum lacks": (
        {"texts": ["a"], "outputs": [9]},
        StatusCode.INVALID_ARGUMENT,
        "`outputs`: 9 is not known",
    ),
    "an output that the model lacks": (
        {"texts": ["a"], "outputs": ["OUTPUT_SPARSE"]},
        StatusCode.FAILED_PRECONDITION,
        "gives no sparse vectors",
    ),
    "states as bits": (
        {"texts": ["a"], "outputs": ["OUTPUT_HIDDEN"], "precision": "PRECISION_BINARY"},
        StatusCode.INVALID_ARGUMENT,
        "float32 or float16",
    ),
    "another vector space": (
        {"texts": ["a"], "vector_space": "vs2-other"},
        StatusCode.FAILED_PRECONDITION,
        "vs2-other",
    ),
    "none of the largest": ({"texts": ["a"], "top_k": 0}, StatusCode.INVALID_ARGUMENT, "`top_k`"),
    "a pool factor below 1": (
        {"texts": ["a"], "pool_factor": 0.5},
        StatusCode.INVALID_ARGUMENT,
        "`pool_factor` must be a number from 1 on",
    ),
    "a pool factor for a model of one vector": (
        {"texts": ["a"], "pool_factor": 2},
        StatusCode.INVALID_ARGUMENT,
        "`pool_factor` is for multi-vectors",
    ),
    "ranges of floats": (
        {"texts": ["a"], "ranges": RANGES},
        StatusCode.INVALID_ARGUMENT,
        "`ranges` are for int8 and uint8",
    ),
    "too few ranges": (
        {"texts": ["a"], "precision": "PRECISION_INT8", "ranges": {"min": [0.0], "max": [1.0]}},
        StatusCode.INVALID_ARGUMENT,
        "the vectors have 8 dimensions",
    ),
    "ranges that are not stored": (
        {"texts": ["a"], "precision": "PRECISION_INT8", "stored_ranges": True},
        StatusCode.INVALID_ARGUMENT,
        "has no quantization_ranges.json",
    ),
    "spans of another number of texts": (
        {"texts": ["a", "b"], "spans": [{"spans": [{"start": 0, "end": 1}]}]},
        StatusCode.INVALID_ARGUMENT,
        "spans",
    ),
    "a span beyond the text": (
        {"texts": ["a"], "spans": [{"spans": [{"start": 0, "end": 9}]}]},
        StatusCode.INVALID_ARGUMENT,
        "span",
    ),
    "chunks without ranges": (
        {"texts": ["a"], "precision": "PRECISION_INT8", "spans": [{"spans": [{"start": 0, "end": 1}]}]},
        StatusCode.INVALID_ARGUMENT,
        "with `ranges` only",
    ),
    "a threshold below 0": ({"texts": ["a"], "threshold": -1.0}, StatusCode.INVALID_ARGUMENT, "`threshold`"),
}


@pytest.mark.parametrize(("fields", "want_status", "want_message"), REFUSED.values(), ids=REFUSED)
async def test_what_cannot_be_encoded_is_refused(
    fields: Mapping[str, Any], want_status: StatusCode, want_message: str
) -> None:
    async with served(card=CARD) as server:
        status, message, _ = await server.client.refusal(ENCODE, **fields)
    assert (status, want_message in message) == (want_status, True), message


async def test_a_reranker_encodes_nothing_and_scores() -> None:
    card = build_classifier_card("LABEL_0")
    async with served(card=card) as server:
        status, message, _ = await server.client.refusal(ENCODE, texts=["a"])
        answer = await server.client.ask(SCORE, query="a", documents=TEXTS)
    async with serve_in_process(card=card) as http:
        want = (await http.client.post("/v1/score", json={"query": "a", "documents": TEXTS})).json()
    assert status is StatusCode.FAILED_PRECONDITION
    assert "use Score" in message
    assert list(answer.scores) == list(answer.cross_encoder) == pytest.approx(want["scores"], rel=1e-6)


async def test_scores_are_those_of_the_http_route() -> None:
    async with served(card=CARD) as server:
        answer = await server.client.ask(
            SCORE,
            query="a",
            documents=TEXTS,
            weights={"dense": 0.5},
            sum_only=True,
            query_prompt_name="query",
        )
        body = {"weights": {"dense": 0.5}, "divide_by_weights": False, "query_prompt_name": "query"}
        want = (
            await server.bench.client.post("/v1/score", json={"query": "a", "documents": TEXTS} | body)
        ).json()
    assert list(answer.scores) == pytest.approx(want["scores"], rel=1e-6)
    assert list(answer.dense) == pytest.approx(want["measures"]["dense"], rel=1e-6)
    assert not answer.sparse
