"""`tei.v1` against the HTTP routes of the same server: one text gives the same numbers on both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ScoreFunction
from tests.runtime.rpc.rpc_kit import dictionary, served
from tests.support.tiny_models import SPACE, build_card, build_classifier_card, build_splade_card

EMBEDDING = build_card(prompts={"query": "query: "})
RERANKER = build_classifier_card("LABEL_0", scores=ScoreFunction.SIGMOID)
CLASSIFIER = build_classifier_card("bad", "fine", "good")
QUERY, TEXTS = "deep learning", ["a list of numbers", "hello", "vector learning", "hello"]
LONG = "hello world " * 30
LEFT = "TRUNCATION_DIRECTION_LEFT"

# Method, fields, route, body, and how the first is read off the second.
EMBEDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a text": ({"inputs": "a vector"}, {"inputs": "a vector"}),
    "as the model gives it": (
        {"inputs": "a vector", "normalize": False},
        {"inputs": "a vector", "normalize": False},
    ),
    "a prompt": (
        {"inputs": "a vector", "prompt_name": "query"},
        {"inputs": "a vector", "prompt_name": "query"},
    ),
    "fewer dimensions": ({"inputs": "a vector", "dimensions": 3}, {"inputs": "a vector", "dimensions": 3}),
    "cut on the right": ({"inputs": LONG, "truncate": True}, {"inputs": LONG, "truncate": True}),
    "cut on the left": (
        {"inputs": "a list " + LONG, "truncate": True, "truncation_direction": LEFT},
        {"inputs": "a list " + LONG, "truncate": True, "truncation_direction": "Left"},
    ),
}


@pytest.mark.parametrize(("fields", "body"), EMBEDS.values(), ids=EMBEDS)
async def test_embed_gives_the_vector_of_the_http_route(
    fields: Mapping[str, Any], body: Mapping[str, Any]
) -> None:
    async with served(card=EMBEDDING) as server:
        answer = await server.client.ask("tei.v1.Embed/Embed", **fields)
        (want,) = (await server.bench.client.post("/embed", json=body)).json()
    assert list(answer.embeddings) == np.array(want, dtype=np.float32).tolist()


async def test_metadata_and_initial_metadata_tell_what_a_call_took() -> None:
    async with served() as server:
        call = server.client.call("tei.v1.Embed/Embed")(
            server.client.message("tei.v1.Embed/Embed", {"inputs": "hello world"})
        )
        answer = await call
        headers = dict(await call.initial_metadata())
    metadata = answer.metadata
    assert (metadata.compute_chars, metadata.compute_tokens) == (11, 4)
    parts = (metadata.tokenization_time_ns, metadata.queue_time_ns, metadata.inference_time_ns)
    assert all(parts)
    assert metadata.total_time_ns >= max(parts)
    assert headers["x-embedserve-vector-space"] == SPACE
    assert headers["x-embedserve-compute"] == "float32"
    assert (headers["x-compute-characters"], headers["x-compute-tokens"]) == ("11", "4")
    assert {"x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"} <= set(headers)


async def test_sparse_vectors_are_those_of_the_http_route() -> None:
    async with served(card=build_splade_card()) as server:
        answer = await server.client.ask("tei.v1.Embed/EmbedSparse", inputs="a vector")
        streamed = await server.client.stream(
            "tei.v1.Embed/EmbedSparseStream", [{"inputs": "hello"}, {"inputs": "a vector"}]
        )
        (want,) = (await server.bench.client.post("/embed_sparse", json={"inputs": "a vector"})).json()
    assert [entry.index for entry in answer.sparse_embeddings] == [entry["index"] for entry in want]
    assert [entry.value for entry in answer.sparse_embeddings] == pytest.approx(
        [entry["value"] for entry in want], rel=1e-6
    )
    assert streamed[1].sparse_embeddings == answer.sparse_embeddings


@pytest.mark.parametrize("text", ["a vector", "hello world " * 14], ids=["short", "many tokens"])
async def test_states_are_those_of_the_http_route(text: str) -> None:
    async with served(card=build_card(dimensions=8)) as server:
        answer = await server.client.ask("tei.v1.Embed/EmbedAll", inputs=text)
        (want,) = (await server.bench.client.post("/embed_all", json={"inputs": text})).json()
    got = [list(token.embeddings) for token in answer.token_embeddings]
    assert got == np.array(want, dtype=np.float32).tolist()


async def test_ranks_are_those_of_the_http_route() -> None:
    async with served(card=RERANKER) as server:
        answer = await server.client.ask("tei.v1.Rerank/Rerank", query=QUERY, texts=TEXTS, return_text=True)
        body = {"query": QUERY, "texts": TEXTS, "return_text": True}
        want = (await server.bench.client.post("/rerank", json=body)).json()
    assert [(rank.index, rank.text) for rank in answer.ranks] == [
        (item["index"], item["text"]) for item in want
    ]
    assert [rank.score for rank in answer.ranks] == pytest.approx([item["score"] for item in want], rel=1e-6)


async def test_texts_are_ranked_by_logit_where_their_scores_are_the_same() -> None:
    texts = [" ".join(["hello"] * words) for words in range(1, 7)]
    async with served(lambda batch: 3 * batch.lengths[:, None].astype(np.float32), card=RERANKER) as server:
        answer = await server.client.ask("tei.v1.Rerank/Rerank", query=QUERY, texts=texts)
    assert [rank.index for rank in answer.ranks] == [5, 4, 3, 2, 1, 0]


async def test_a_stream_of_texts_is_ranked_as_one_request_and_its_first_message_decides() -> None:
    fields = [{"query": QUERY, "text": text, "raw_scores": index == 0} for index, text in enumerate(TEXTS)]
    async with served(card=RERANKER) as server:
        call = server.client.call("tei.v1.Rerank/RerankStream")
        streamed = await call(server.client.message("tei.v1.Rerank/RerankStream", field) for field in fields)
        want = await server.client.ask("tei.v1.Rerank/Rerank", query=QUERY, texts=TEXTS, raw_scores=True)
    assert dictionary(streamed) == dictionary(want)
    assert not any(rank.HasField("text") for rank in streamed.ranks)


PREDICTED = {
    "a text": ("Predict", {"inputs": "hello"}, [["hello"]]),
    "one text of a pair": ("PredictPair", {"inputs": ["hello"]}, [["hello"]]),
    "a pair": ("PredictPair", {"inputs": ["hello", "a vector"]}, [["hello", "a vector"]]),
}


@pytest.mark.parametrize(("method", "fields", "inputs"), PREDICTED.values(), ids=PREDICTED)
async def test_predictions_are_those_of_the_http_route(
    method: str, fields: Mapping[str, Any], inputs: list[list[str]]
) -> None:
    async with served(card=CLASSIFIER) as server:
        answer = await server.client.ask(f"tei.v1.Predict/{method}", **fields)
        streamed = await server.client.stream(f"tei.v1.Predict/{method}Stream", [fields, fields])
        (want,) = (await server.bench.client.post("/predict", json={"inputs": inputs})).json()
    assert [prediction.label for prediction in answer.predictions] == [item["label"] for item in want]
    assert [prediction.score for prediction in answer.predictions] == pytest.approx(
        [item["score"] for item in want], rel=1e-6
    )
    assert [dictionary(message) for message in streamed] == [dictionary(answer)] * 2


async def test_tokens_have_the_offsets_of_the_http_route_and_go_back_to_text() -> None:
    text = "Grüße, hello world"
    async with served() as server:
        for special in (True, False):
            answer = await server.client.ask(
                "tei.v1.Tokenize/Tokenize", inputs=text, add_special_tokens=special
            )
            body = {"inputs": text, "add_special_tokens": special}
            (want,) = (await server.bench.client.post("/tokenize", json=body)).json()
            got = [
                {
                    "id": token.id,
                    "text": token.text,
                    "special": token.special,
                    "start": token.start if token.HasField("start") else None,
                    "stop": token.stop if token.HasField("stop") else None,
                }
                for token in answer.tokens
            ]
            assert got == want
        ids = [token.id for token in answer.tokens][-2:]
        decoded = await server.client.ask("tei.v1.Tokenize/Decode", ids=ids)
        streamed = await server.client.stream(
            "tei.v1.Tokenize/DecodeStream", [{"ids": ids}, {"ids": ids[:1]}]
        )
        tokenized = await server.client.stream("tei.v1.Tokenize/TokenizeStream", [{"inputs": text}])
    assert decoded.text == "hello world"
    assert [message.text for message in streamed] == ["hello world", "hello"]
    assert tokenized == [answer]


KINDS = {"embedding": (build_card(), 0), "classifier": (CLASSIFIER, 1), "reranker": (RERANKER, 2)}


@pytest.mark.parametrize(("card", "number"), KINDS.values(), ids=KINDS)
async def test_info_has_the_values_of_the_http_route(card: ModelCard, number: int) -> None:
    async with served(card=card) as server:
        answer = await server.client.ask("tei.v1.Info/Info")
        want = (await server.bench.client.get("/info")).json()
    assert answer.model_type == number
    for name in (
        "version",
        "model_id",
        "model_sha",
        "model_dtype",
        "max_concurrent_requests",
        "max_input_length",
        "max_batch_tokens",
        "max_client_batch_size",
        "tokenization_workers",
    ):
        assert getattr(answer, name) == want[name]
    assert not answer.HasField("max_batch_requests")
