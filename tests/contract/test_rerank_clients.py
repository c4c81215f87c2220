"""Real reranking clients against a live server with a tiny cross-encoder: scores, order, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cohere
import httpx
import numpy as np
import pytest
from grpc import RpcError
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker, TruncationDirection
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference
from sentence_transformers import CrossEncoder
from transformers import BertConfig, BertForSequenceClassification

from tests.contract.outside import outside
from tests.support.models import tiny
from tests.support.server_process import start_server
from tests.support.tokenizers import with_minilm_tokenizer

pytestmark = pytest.mark.thorough

KEY = "a-key-of-the-rerankers"
QUERY = "What is a vector?"
TEXTS = ["A vector is a list of numbers.", "Ein Satz.", "deep learning " * 300, "Numbers, in a list?"]

# (index, score) of each text, as the client has them, the best first.
Ranking = Sequence[tuple[int, float]]
Rank = Callable[[str, str], Ranking]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reranker")
    config = BertConfig(
        vocab_size=30_522,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=128,
        num_labels=1,
    )
    tiny(folder, BertForSequenceClassification, config)
    return with_minilm_tokenizer(folder)


@pytest.fixture(scope="module")
def addresses(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """For HTTP and for gRPC."""
    settings = {"server": {"api_keys": [KEY], "grpc_port": 0}}
    with start_server(model, tmp_path_factory.mktemp("server"), settings) as server:
        grpc_address = server.wait_for_grpc_address()
        yield server.address, grpc_address
        server.process.terminate()
        server.wait_for_exit()


@pytest.fixture(scope="module")
def address(addresses: tuple[str, str]) -> str:
    return addresses[0]


@pytest.fixture(scope="module")
def grpc_address(addresses: tuple[str, str]) -> str:
    return addresses[1]


@pytest.fixture(scope="module")
def want_scores(model: Path) -> np.ndarray:
    encoder = CrossEncoder(str(model), device="cpu", max_length=128)
    return np.asarray(encoder.predict([(QUERY, text) for text in TEXTS]))


def with_tei(address: str, key: str) -> Ranking:
    answer = httpx.post(
        f"{address}/rerank",
        json={"query": QUERY, "texts": TEXTS},
        headers={"authorization": f"Bearer {key}"},
    )
    answer.raise_for_status()
    return [(item["index"], item["score"]) for item in answer.json()]


def with_open_webui(address: str, key: str) -> Ranking:
    """As Open WebUI sends it and reads it (backend/open_webui/retrieval/models/external.py, ExternalReranker)."""
    payload = {"model": "any", "query": QUERY, "documents": TEXTS, "top_n": len(TEXTS)}
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    answer = httpx.post(f"{address}/v1/rerank", content=json.dumps(payload), headers=headers)
    answer.raise_for_status()
    results = sorted(answer.json()["results"], key=lambda result: int(result["index"]))
    scores = [float(result["relevance_score"]) for result in results]
    return sorted(enumerate(scores), key=lambda item: -item[1])


def with_litellm_proxy(address: str, key: str) -> Ranking:
    """As the proxy of litellm 1.110.2 sends it on for a model `cohere/ranker`."""
    payload = {"model": "ranker", "query": QUERY, "top_n": len(TEXTS), "documents": TEXTS}
    headers = {
        "accept": "application/json",
        "content-type": "application/json",
        "authorization": f"Bearer {key}",
        "user-agent": "litellm/1.110.2",
    }
    answer = httpx.post(f"{address}/v2/rerank", content=json.dumps(payload), headers=headers)
    answer.raise_for_status()
    return [(item["index"], item["relevance_score"]) for item in answer.json()["results"]]


def with_cohere(address: str, key: str) -> Ranking:
    with httpx.Client() as http:
        client = cohere.ClientV2(api_key=key, base_url=address, httpx_client=http)
        answer = client.rerank(model="any", query=QUERY, documents=TEXTS)
    return [(item.index, item.relevance_score) for item in answer.results]


def with_cohere_v1(address: str, key: str) -> Ranking:
    with httpx.Client() as http:
        client = cohere.Client(api_key=key, base_url=address, httpx_client=http)
        answer = client.rerank(model="any", query=QUERY, documents=TEXTS, return_documents=True)
    assert [item.document.text for item in answer.results if item.document] == [
        TEXTS[item.index] for item in answer.results
    ]
    return [(item.index, item.relevance_score) for item in answer.results]


def with_llama_index(address: str, key: str) -> Ranking:
    ranker = TextEmbeddingInference(base_url=address, auth_token=f"Bearer {key}", top_n=len(TEXTS))
    nodes = [NodeWithScore(node=TextNode(id_=str(index), text=text)) for index, text in enumerate(TEXTS)]
    ranked = ranker.postprocess_nodes(nodes, QueryBundle(QUERY))
    return [(int(node.node_id), float(node.score or 0)) for node in ranked]


def with_haystack(address: str, key: str) -> Ranking:
    ranker = HuggingFaceTEIRanker(url=address, token=Secret.from_token(key), max_retries=0)
    documents = [Document(id=str(index), content=text) for index, text in enumerate(TEXTS)]
    ranked = ranker.run(QUERY, documents)["documents"]
    return [(int(document.id), float(document.score or 0)) for document in ranked]


CLIENTS = [
    pytest.param(with_tei, httpx.HTTPStatusError, id="httpx, TEI's route"),
    pytest.param(with_open_webui, httpx.HTTPStatusError, id="Open WebUI's external reranker"),
    pytest.param(with_litellm_proxy, httpx.HTTPStatusError, id="litellm's proxy"),
    pytest.param(with_cohere, cohere.UnauthorizedError, id="cohere"),
    pytest.param(with_cohere_v1, cohere.UnauthorizedError, id="cohere, version 1"),
    # It reads no status; an empty body at least is no ranking.
    pytest.param(with_llama_index, ValueError, id="llama-index"),
    pytest.param(with_haystack, RuntimeError, id="haystack"),
]


@pytest.mark.parametrize(("rank", "_"), CLIENTS)
def test_each_client_gets_the_cross_encoders_ranking(
    rank: Rank, _: type[Exception], address: str, want_scores: np.ndarray
) -> None:
    check(rank(address, KEY), want_scores)


def check(ranked: Ranking, want_scores: np.ndarray) -> None:
    assert [index for index, _ in ranked] == np.argsort(-want_scores).tolist()
    for index, score in ranked:
        assert score == pytest.approx(want_scores[index], abs=1e-5)


@pytest.mark.parametrize(("rank", "error"), CLIENTS)
def test_a_wrong_key_is_each_clients_own_error(rank: Rank, error: type[Exception], address: str) -> None:
    with pytest.raises(error):
        rank(address, "a-wrong-key")


def test_haystack_ranks_over_grpc(grpc_address: str, want_scores: np.ndarray) -> None:
    documents = [Document(id=str(index), content=text) for index, text in enumerate(TEXTS)]
    right, wrong = (
        HuggingFaceTEIRanker(url=grpc_address, token=Secret.from_token(key), use_grpc=True)
        for key in (KEY, "a-wrong-key")
    )
    ranked = right.run(QUERY, documents, truncation_direction=TruncationDirection.RIGHT)["documents"]
    check([(int(document.id), float(document.score or 0)) for document in ranked], want_scores)
    with pytest.raises(RpcError, match=r"StatusCode\.UNAUTHENTICATED"):
        wrong.run(QUERY, documents)
    for ranker in (right, wrong):
        ranker.close()


def test_litellm_ranks_by_both_of_its_dialects_and_raises_its_own_error(
    address: str, want_scores: np.ndarray
) -> None:
    asks = [
        {"client": client, "address": address, "key": key, "texts": TEXTS, "query": QUERY}
        for client in ("litellm_rerank", "litellm_cohere_rerank")
        for key in (KEY, "a-wrong-key")
    ]
    by_tei, refused_by_tei, by_cohere, refused_by_cohere = outside(asks)
    check(by_tei, want_scores)
    check(by_cohere, want_scores)
    assert "AuthenticationError" in refused_by_tei["error"] + refused_by_tei["message"]
    assert "AuthenticationError" in refused_by_cohere["error"] + refused_by_cohere["message"]
