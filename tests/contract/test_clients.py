"""Real clients against a live server with the real MiniLM and an API key: vectors, and errors as they see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cohere
import httpx
import numpy as np
import openai
import pytest
from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer
from haystack.components.embedders import OpenAITextEmbedder
from haystack.utils import Secret
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from pydantic import SecretStr

from tests.contract.outside import outside
from tests.support.models import minilm_folder
from tests.support.server_process import start_server

pytestmark = pytest.mark.thorough

KEY = "a-key-of-the-contract"
TEXTS = ["What is a vector?", "Ein Vektor ist eine Liste von Zahlen."]

Embed = Callable[[str, str], Sequence[Sequence[float]]]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"server": {"api_keys": ["another-key", KEY]}}
    with start_server(minilm_folder(), tmp_path_factory.mktemp("server"), settings) as server:
        server.wait_until_ready()
        yield server.address
        server.process.terminate()
        server.wait_for_exit()
    log = str(server.lines)
    assert KEY not in log
    assert "Authorization" not in log
    assert TEXTS[0] not in log


@pytest.fixture(scope="module")
def want_vectors(address: str) -> Any:
    answer = httpx.post(
        f"{address}/embed", json={"inputs": TEXTS}, headers={"authorization": f"Bearer {KEY}"}
    )
    return np.array(answer.json(), dtype=np.float32)


def with_openai(address: str, key: str) -> Sequence[Sequence[float]]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0) as client:
        assert client.models.list().data[0].object == "model"
        answer = client.embeddings.create(model="any", input=TEXTS)
    return [item.embedding for item in answer.data]


def with_openai_async(address: str, key: str) -> Sequence[Sequence[float]]:
    async def embed() -> Sequence[Sequence[float]]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0) as client:
            answer = await client.embeddings.create(model="any", input=TEXTS, encoding_format="float")
        return [item.embedding for item in answer.data]

    return asyncio.run(embed())


def with_huggingface(address: str, key: str) -> Sequence[Sequence[float]]:
    client = InferenceClient(model=f"{address}/", token=key)
    return [client.feature_extraction(text, truncate=True)[0].tolist() for text in TEXTS]


def with_cohere(address: str, key: str) -> Sequence[Sequence[float]]:
    with httpx.Client() as http:
        client = cohere.ClientV2(api_key=key, base_url=address, httpx_client=http)
        answer = client.embed(
            model="any", texts=TEXTS, input_type="search_document", embedding_types=["float", "int8"]
        )
    assert answer.embeddings.int8 is not None
    assert answer.embeddings.float_ is not None
    return answer.embeddings.float_


def with_langchain(address: str, key: str) -> Sequence[Sequence[float]]:
    embedder = OpenAIEmbeddings(
        model="any",
        openai_api_base=f"{address}/v1",
        openai_api_key=SecretStr(key),
        check_embedding_ctx_length=False,
        max_retries=0,
    )
    return embedder.embed_documents(TEXTS)


def with_llama_index(address: str, key: str) -> Sequence[Sequence[float]]:
    embedder = TextEmbeddingsInference(model_name="any", base_url=address, auth_token=key)
    vectors: list[list[float]] = embedder.get_text_embedding_batch(TEXTS)
    return vectors


def with_haystack(address: str, key: str) -> Sequence[Sequence[float]]:
    embedder = OpenAITextEmbedder(
        model="any", api_base_url=f"{address}/v1", api_key=Secret.from_token(key), max_retries=0
    )
    return [embedder.run(text)["embedding"] for text in TEXTS]


def with_chroma(address: str, key: str) -> Sequence[Sequence[float]]:
    with pytest.warns(DeprecationWarning, match="api_key"):  # it wants keys to come by the environment
        embedder = HuggingFaceEmbeddingServer(url=f"{address}/embed", api_key=key)
    with embedder._session:  # which it leaves open
        return [vector.tolist() for vector in embedder(TEXTS)]


CLIENTS = [
    pytest.param(with_openai, openai.AuthenticationError, id="openai"),
    pytest.param(with_openai_async, openai.AuthenticationError, id="openai, async"),
    pytest.param(with_huggingface, HfHubHTTPError, id="huggingface_hub"),
    pytest.param(with_cohere, cohere.UnauthorizedError, id="cohere"),
    pytest.param(with_langchain, openai.AuthenticationError, id="langchain"),
    # It reads no status; an empty body at least is no vector.
    pytest.param(with_llama_index, ValueError, id="llama-index"),
    # It reads no status either.
    pytest.param(with_chroma, ValueError, id="chroma"),
    pytest.param(with_haystack, openai.AuthenticationError, id="haystack"),
]


@pytest.mark.parametrize(("embed", "_"), CLIENTS)
def test_each_client_gets_the_same_vectors(embed: Embed, _: Any, address: str, want_vectors: Any) -> None:
    vectors = np.array(embed(address, KEY), dtype=np.float32)
    np.testing.assert_allclose(vectors, want_vectors, atol=1e-6)


@pytest.mark.parametrize(("embed", "error"), CLIENTS)
def test_a_wrong_key_is_each_clients_own_error(embed: Embed, error: type[Exception], address: str) -> None:
    with pytest.raises(error):
        embed(address, "a-wrong-key")


def test_huggingface_compares_sentences(address: str) -> None:
    client = InferenceClient(model=f"{address}/similarity", token=KEY)
    scores = client.sentence_similarity(TEXTS[0], other_sentences=[TEXTS[0], *TEXTS])
    assert scores[0] == pytest.approx(1.0, abs=1e-6)
    assert scores[2] < 1.0


def test_cohere_sees_a_refusal_as_its_own_error(address: str) -> None:
    with httpx.Client() as http, pytest.raises(cohere.UnprocessableEntityError) as caught:
        cohere.ClientV2(api_key=KEY, base_url=address, httpx_client=http).embed(
            model="any",
            texts=["a " * 2_000],
            input_type="search_query",
            embedding_types=["float"],
            truncate="NONE",
        )
    assert "shorten it" in str(caught.value.body)


def test_clients_of_another_environment_get_the_same_vectors_and_their_own_errors(
    address: str, want_vectors: Any
) -> None:
    asks = [
        {"client": client, "address": address, "key": key, "texts": TEXTS}
        for client in ("litellm_openai", "langchain_huggingface")
        for key in (KEY, "a-wrong-key")
    ]
    litellm, litellm_refused, langchain, langchain_refused = outside(asks)
    np.testing.assert_allclose(litellm, want_vectors, atol=1e-6)
    np.testing.assert_allclose(langchain, want_vectors, atol=1e-6)
    assert litellm_refused["error"] == "AuthenticationError"
    assert "401" in langchain_refused["message"]
