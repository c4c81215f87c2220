"""Requests of clients that the tests cannot install, byte by byte as they send them, and the roles that clients name.

Each request was taken from the client's public source, or from a listening socket that the client was pointed at.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import openai
import pytest
from haystack.components.embedders import OpenAITextEmbedder
from haystack.utils import Secret
from huggingface_hub import InferenceClient
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from tests.contract.outside import outside
from tests.support.http_connection import Answer, build_request, encode_chunked
from tests.support.models import small_minilm
from tests.support.monitored_server import MonitoredServer, start_monitored_server

KEY = "a-key-of-the-contract"
# The small model knows letters, and takes every longer word for the same unknown one.
TEXTS = ["A b, c?", "ü x y z."]
PROMPTS = {"query": "q: ", "document": "d; "}
# Between a vector in base64 and the same one in decimal digits there is no rounding; between batches there may be.
MAX_DIFFERENCE = 1e-6

OFFER = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
JDK_SETTINGS = "HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA"
JDK = (*OFFER, JDK_SETTINGS, "User-Agent: Java-http-client/17.0.15", "Content-Type: application/json")
NODE = (
    "connection: keep-alive",
    "accept: application/json",
    "user-agent: OpenAI/JS 6.49.0",
    "x-stainless-retry-count: 0",
    "x-stainless-lang: js",
    "x-stainless-package-version: 6.49.0",
    "x-stainless-os: Linux",
    "x-stainless-arch: x64",
    "x-stainless-runtime: node",
    "x-stainless-runtime-version: v20.20.2",
    "content-type: application/json",
    "accept-language: *",
    "sec-fetch-mode: cors",
    "accept-encoding: gzip, deflate",
)
LITELLM_PROXY = (
    "accept-encoding: gzip, deflate",
    "connection: keep-alive",
    "accept: application/json",
    "content-type: application/json",
    "user-agent: AsyncOpenAI/Python 3.57.0",
    "x-stainless-lang: python",
    "x-stainless-package-version: 3.57.0",
    "x-stainless-os: Linux",
    "x-stainless-arch: x64",
    "x-stainless-runtime: CPython",
    "x-stainless-runtime-version: 3.11.7",
    "x-stainless-async: async:asyncio",
    "x-stainless-raw-response: true",
    "x-stainless-retry-count: 0",
    "x-stainless-read-timeout: 6000.0",
)
OPEN_WEBUI = (
    "Accept: */*",
    "Accept-Encoding: gzip, deflate",
    "User-Agent: Python/3.11 aiohttp/3.13.2",
    "Content-Type: application/json",
    "X-OpenWebUI-User-Name: J%C3%B6rg Example",
    "X-OpenWebUI-User-Id: 4c1f2f6e-6b1a-4d55-9d29-7f4b8f0b9f10",
    "X-OpenWebUI-User-Email: joerg@example.org",
    "X-OpenWebUI-User-Role: user",
)


@dataclass(frozen=True)
class ClientRequest:
    """A request of a client to /v1/embeddings, without the headers Host, Authorization and Content-Length.

    options: what has to be sent to /embed for the same vectors.
    """

    headers: tuple[str, ...]
    body: str
    options: Mapping[str, Any]
    is_chunked: bool = False

    def build(self, key: str) -> bytes:
        headers, body = (*self.headers, f"Authorization: Bearer {key}"), self.body.encode()
        if self.is_chunked:
            headers, body = (*headers, "Transfer-encoding: chunked"), encode_chunked(body)
        return build_request("POST", "/v1/embeddings", *headers, body=body)


TEXTS_COMPACT = '["A b, c?","ü x y z."]'
TEXTS_PYTHON = '["A b, c?", "\\u00fc x y z."]'
QUERY, DOCUMENT = {"prompt_name": "query"}, {"prompt_name": "document"}

REQUESTS = {
    # As openai 6.49.0 sends it with Node 20: without `encoding_format` it asks for base64, which it decodes itself.
    "openai for Node": ClientRequest(
        NODE, f'{{"model":"docs","input":{TEXTS_COMPACT},"encoding_format":"base64"}}', {}
    ),
    "openai for Node, a field of ours": ClientRequest(
        NODE,
        f'{{"model":"docs","input":{TEXTS_COMPACT},"encoding_format":"float","input_type":"query"}}',
        QUERY,
    ),
    # As the proxy of litellm 1.110.2 sends it on for a model `openai/docs`: what its client wrote, `model` replaced.
    "litellm's proxy": ClientRequest(LITELLM_PROXY, f'{{"model":"docs","input":{TEXTS_COMPACT}}}', {}),
    "litellm's proxy, a field of ours": ClientRequest(
        LITELLM_PROXY, f'{{"model":"docs","input":{TEXTS_COMPACT},"input_type":"query"}}', QUERY
    ),
    "litellm's proxy, base64": ClientRequest(
        LITELLM_PROXY,
        f'{{"model":"docs","input":{TEXTS_COMPACT},"user":"u","encoding_format":"base64"}}',
        {},
    ),
    # Its model `docs-query` has `openai/docs:query` in the proxy's configuration.
    "litellm's proxy, a model for queries": ClientRequest(
        LITELLM_PROXY, f'{{"model":"docs:query","input":{TEXTS_COMPACT},"encoding_format":"float"}}', QUERY
    ),
    # As Open WebUI sends it (backend/open_webui/retrieval/utils.py, agenerate_openai_batch_embeddings), with
    # ENABLE_FORWARD_USER_INFO_HEADERS. The last two have RAG_EMBEDDING_PREFIX_FIELD_NAME=input_type, and
    # RAG_EMBEDDING_QUERY_PREFIX=query or RAG_EMBEDDING_CONTENT_PREFIX=document.
    "Open WebUI": ClientRequest(OPEN_WEBUI, f'{{"input": {TEXTS_PYTHON}, "model": "docs"}}', {}),
    "Open WebUI, queries": ClientRequest(
        OPEN_WEBUI, f'{{"input": {TEXTS_PYTHON}, "model": "docs", "input_type": "query"}}', QUERY
    ),
    "Open WebUI, documents": ClientRequest(
        OPEN_WEBUI, f'{{"input": {TEXTS_PYTHON}, "model": "docs", "input_type": "document"}}', DOCUMENT
    ),
    # As java.net.http.HttpClient of JDK 17 sends it unless it is told HTTP_1_1: a body of known length, and a stream.
    "JDK": ClientRequest(JDK, f'{{"input":{TEXTS_COMPACT},"model":"docs"}}', {}),
    "JDK, a stream": ClientRequest(JDK, f'{{"input":{TEXTS_COMPACT},"model":"docs"}}', {}, is_chunked=True),
    # As Spring AI 1 sends it (OpenAiApi.EmbeddingRequest: null fields are left out) by Spring's RestClient over the
    # JDK's client, which streams bodies. EmbeddingOptions have no type of inputs; the model's name says it.
    "Spring AI": ClientRequest(
        JDK, f'{{"input":{TEXTS_COMPACT},"model":"docs","encoding_format":"float"}}', {}, is_chunked=True
    ),
    "Spring AI, queries, fewer dimensions": ClientRequest(
        JDK,
        f'{{"input":{TEXTS_COMPACT},"model":"docs:query","encoding_format":"float","dimensions":64,"user":"u"}}',
        QUERY | {"dimensions": 64},
        is_chunked=True,
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_minilm(tmp_path_factory.mktemp("clients") / "docs")
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    return folder


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[MonitoredServer]:
    settings = {"server": {"api_keys": [KEY]}}
    with start_monitored_server(model, model.parent / "server", settings) as started:
        yield started


@pytest.fixture
def server(running: MonitoredServer) -> Iterator[MonitoredServer]:
    yield running
    running.close_connections()
    assert not running.list_new_errors()


@pytest.fixture
def address(server: MonitoredServer) -> str:
    return server.server.address


def embed(address: str, options: Mapping[str, Any]) -> np.ndarray:
    headers = {"authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{address}/embed", json={"inputs": TEXTS} | dict(options), headers=headers)
    return np.array(answer.raise_for_status().json(), dtype=np.float32)


def read_body(answer: Answer) -> Any:
    packed = answer.get("content-encoding") == "gzip"
    return json.loads(gzip.decompress(answer.body) if packed else answer.body)


def read_vectors(content: Any) -> np.ndarray:
    """Read the vectors in the order in which they came, as these clients do, which do not look at `index`."""
    found = [item["embedding"] for item in content["data"]]
    return np.array(
        [
            np.frombuffer(base64.b64decode(vector), dtype="<f4") if isinstance(vector, str) else vector
            for vector in found
        ],
        dtype=np.float32,
    )


@pytest.mark.parametrize("request_of_client", REQUESTS.values(), ids=REQUESTS)
def test_a_request_of_each_client_gets_the_vectors_of_embed(
    request_of_client: ClientRequest, server: MonitoredServer, address: str
) -> None:
    answer = server.send_request(request_of_client.build(KEY))
    assert (answer.version, answer.status, answer.get("upgrade")) == ("HTTP/1.1", 200, None), answer
    content = read_body(answer)
    np.testing.assert_allclose(
        read_vectors(content), embed(address, request_of_client.options), rtol=0, atol=MAX_DIFFERENCE
    )
    # Jackson refuses a fraction where a record has an Integer.
    numbers = [*content["usage"].values(), *(item["index"] for item in content["data"])]
    assert all(type(number) is int for number in numbers), content["usage"]


@pytest.mark.parametrize("request_of_client", REQUESTS.values(), ids=REQUESTS)
def test_a_wrong_key_is_refused_in_openais_words(
    request_of_client: ClientRequest, server: MonitoredServer
) -> None:
    answer = server.send_request(request_of_client.build("a-wrong-key"))
    assert answer.status == 401, answer
    assert set(read_body(answer)["error"]) >= {"message", "type", "code"}


def test_roles_change_the_vectors_of_this_model(address: str) -> None:
    """Without it the tests of roles could not fail."""
    plain, query, document = (embed(address, options) for options in ({}, QUERY, DOCUMENT))
    for one, other in ((plain, query), (plain, document), (query, document)):
        assert np.abs(one - other).max() > 100 * MAX_DIFFERENCE


def say_role_with_openai(address: str, role: str) -> Sequence[Sequence[float]]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as client:
        answer = client.embeddings.create(model="docs", input=TEXTS, extra_body={"input_type": role})
    return [item.embedding for item in answer.data]


def say_role_with_cohere(address: str, role: str) -> Sequence[Sequence[float]]:
    with httpx.Client() as http:
        client = cohere.ClientV2(api_key=KEY, base_url=address, httpx_client=http)
        answer = client.embed(
            model="docs", texts=TEXTS, input_type=f"search_{role}", embedding_types=["float"]
        )
    assert answer.embeddings.float_ is not None
    return answer.embeddings.float_


def say_role_with_langchain(address: str, role: str) -> Sequence[Sequence[float]]:
    embedder = OpenAIEmbeddings(
        model=f"docs:{role}",
        openai_api_base=f"{address}/v1",
        openai_api_key=SecretStr(KEY),
        check_embedding_ctx_length=False,
        max_retries=0,
    )
    return embedder.embed_documents(TEXTS)


def say_role_with_haystack(address: str, role: str) -> Sequence[Sequence[float]]:
    embedder = OpenAITextEmbedder(
        model=f"docs:{role}", api_base_url=f"{address}/v1", api_key=Secret.from_token(KEY), max_retries=0
    )
    return [embedder.run(text)["embedding"] for text in TEXTS]


def say_role_with_huggingface(address: str, role: str) -> Sequence[Sequence[float]]:
    client = InferenceClient(model=f"{address}/", token=KEY)
    return [client.feature_extraction(text, prompt_name=role)[0].tolist() for text in TEXTS]


def say_role_with_litellm(address: str, role: str) -> Sequence[Sequence[float]]:
    ask = {
        "client": "litellm_openai",
        "model": f"docs:{role}",
        "address": address,
        "key": KEY,
        "texts": TEXTS,
    }
    (vectors,) = outside([ask])
    assert isinstance(vectors, list), vectors
    return vectors


@pytest.mark.thorough
@pytest.mark.parametrize("role", ["query", "document"])
@pytest.mark.parametrize(
    "say_role",
    [
        say_role_with_openai,
        say_role_with_cohere,
        say_role_with_langchain,
        say_role_with_haystack,
        say_role_with_huggingface,
        say_role_with_litellm,
    ],
)
def test_a_role_that_a_client_names_arrives(
    say_role: Callable[[str, str], Sequence[Sequence[float]]], role: str, address: str
) -> None:
    vectors = np.array(say_role(address, role), dtype=np.float32)
    np.testing.assert_allclose(vectors, embed(address, {"prompt_name": role}), rtol=0, atol=MAX_DIFFERENCE)
