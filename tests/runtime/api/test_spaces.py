"""Vector spaces over HTTP: naming one in a request, the self-check, and a name that stands for another one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from embedserve_runtime.api.app import create_app, create_management_app
from embedserve_runtime.api.middleware import space_client
from embedserve_runtime.api.middleware.forwarding import build_space_address
from embedserve_runtime.api.operator_calls import OperatorCalls
from embedserve_runtime.config import ServerSettings
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.card import ModelCard
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_models import SPACE, build_card, build_classifier_card, build_splade_card

OTHER = "vs2-fedcba9876543210fedc"
EMBEDDING = [
    pytest.param("/embed", {"inputs": "hello"}, id="TEI's embed"),
    pytest.param("/embed_all", {"inputs": "hello"}, id="TEI's embed_all"),
    pytest.param(
        "/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, id="TEI's similarity"
    ),
    pytest.param("/v1/embeddings", {"input": "hello"}, id="OpenAI's"),
    pytest.param("/v2/embed", {"texts": ["hello"]}, id="Cohere's"),
    pytest.param("/v1/encode", {"inputs": "hello"}, id="the native one"),
    pytest.param("/v1/score", {"query": "a", "documents": ["b"]}, id="native scores"),
    pytest.param("/", {"inputs": "hello"}, id="a platform's default"),
    pytest.param("/vertex", {"instances": [{"inputs": "hello"}]}, id="Vertex's"),
]
RANKING = [
    pytest.param("/rerank", {"query": "a", "texts": ["b"]}, id="TEI's rerank"),
    pytest.param("/predict", {"inputs": "a"}, id="TEI's predict"),
    pytest.param("/v1/rerank", {"query": "a", "documents": ["b"]}, id="Cohere's first"),
    pytest.param("/v2/rerank", {"query": "a", "documents": ["b"]}, id="Cohere's second"),
]


@pytest.mark.parametrize(("path", "body"), [*EMBEDDING, *RANKING])
async def test_every_answer_names_its_space_and_what_computes_it_and_no_other_one_is_answered(
    path: str, body: dict[str, Any]
) -> None:
    card = (
        build_classifier_card("fits")
        if path in {"/rerank", "/predict", "/v1/rerank", "/v2/rerank"}
        else build_card()
    )
    async with serve_in_process(card=card) as server:
        answer = await server.client.post(path, json=body)
        header = {"X-Embedserve-Vector-Space": SPACE}
        pinned = await server.client.post(path, json=body, headers=header)
        refused = await server.client.post(path, json=body, headers={**header, **_space(OTHER)})
    assert (answer.status_code, pinned.status_code, refused.status_code) == (200, 200, 409), answer.text
    assert answer.headers["X-Embedserve-Vector-Space"] == SPACE
    assert answer.headers["X-Embedserve-Compute"] == "float32"
    assert SPACE in refused.text
    assert OTHER in refused.text


@pytest.mark.parametrize("value", [f" {SPACE}\t", "", "  "], ids=repr)
async def test_white_space_around_the_space_that_is_wanted_says_nothing(value: str) -> None:
    async with serve_in_process() as server:
        answer = await server.client.post("/embed", json={"inputs": "hello"}, headers=_space(value))
    assert answer.status_code == 200, answer.text


def _space(name: str) -> dict[str, str]:
    return {"X-Embedserve-Vector-Space": name}


MODELS = [
    pytest.param("docs", 200, id="a name"),
    pytest.param("acme/me@home", 200, id="a name with an at sign"),
    pytest.param(f"docs@{SPACE}", 200, id="its own space"),
    pytest.param(f"docs@{OTHER}", 409, id="another space"),
    pytest.param("docs@vs2-", 409, id="half a space"),
]


@pytest.mark.parametrize(("model", "want"), MODELS)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "hello"}),
        ("/v2/embed", {"texts": ["hello"]}),
        ("/v1/encode", {"inputs": "hello"}),
        ("/v1/score", {"query": "a", "documents": ["b"]}),
    ],
)
async def test_a_model_may_name_the_space_that_is_wanted(
    path: str, body: dict[str, Any], model: str, want: int
) -> None:
    async with serve_in_process() as server:
        answer = await server.client.post(path, json={**body, "model": model})
    assert answer.status_code == want, answer.text


async def test_header_and_model_must_not_name_two_spaces() -> None:
    body = {"input": "hello", "model": f"docs@{OTHER}"}
    async with serve_in_process() as server:
        answer = await server.client.post("/v1/embeddings", json=body, headers=_space(SPACE))
    assert answer.status_code == 409
    assert "leave one out" in answer.json()["error"]["message"]


# -- the management port


def _zeros(batch: PackedBatch) -> FloatArray:
    return np.ones((len(batch.lengths), 8), dtype=np.float32)


def _unsteady() -> Callable[[PackedBatch], FloatArray]:
    random = np.random.default_rng(3)
    return lambda batch: random.standard_normal((len(batch.lengths), 8), dtype=np.float32)


def _not_finite(batch: PackedBatch) -> FloatArray:
    return np.full((len(batch.lengths), 8), np.nan, dtype=np.float32)


@pytest.mark.parametrize(
    "card",
    [
        pytest.param(build_card(), id="vectors"),
        pytest.param(build_card(normalize=False), id="vectors of any length"),
        pytest.param(build_splade_card(), id="sparse vectors"),
        pytest.param(build_classifier_card("a", "b"), id="labels"),
        pytest.param(build_classifier_card("fits"), id="scores"),
    ],
)
async def test_a_sound_model_passes_its_self_check(card: ModelCard) -> None:
    async with serve_in_process(card=card) as server, _managed(server) as management:
        answer = await management.get("/selfcheck")
    content = answer.json()
    assert (answer.status_code, content["problems"]) == (200, [])
    assert (content["vector_space"], content["dimensions"]) == (SPACE, card.pipeline.dimensions)
    assert content["outputs"]


@pytest.mark.parametrize(
    ("run", "want"),
    [
        pytest.param(_zeros, "different texts gave the same vector", id="constant"),
        pytest.param(_unsteady(), "the same text gave another vector", id="random"),
        pytest.param(_not_finite, "", id="not a number"),
    ],
)
async def test_a_model_that_makes_nonsense_does_not_pass(
    run: Callable[[PackedBatch], FloatArray], want: str
) -> None:
    async with serve_in_process(run) as server, _managed(server) as management:
        answer = await management.get("/selfcheck")
    assert answer.status_code >= 500
    assert want in answer.text


async def test_before_the_model_is_there_nothing_passes() -> None:
    async with serve_in_process(ready=False) as server, _managed(server) as management:
        assert (await management.get("/selfcheck")).status_code == 503
        assert (await management.put("/current", json={"vector_space": SPACE})).status_code == 503


async def test_a_process_is_told_what_the_name_stands_for_and_says_whether_that_is_its_own() -> None:
    async with serve_in_process() as server, _managed(server) as management:
        answers = [await management.get("/current")]
        answers += [
            await management.put("/current", json={"vector_space": space}) for space in (OTHER, OTHER, SPACE)
        ]
        refused = await management.put("/current", json={"vector_space": "http://elsewhere"})
    assert [answer.json()["current"] for answer in answers] == [True, False, False, True]
    assert refused.status_code == 422


@asynccontextmanager
async def _managed(server: InProcessServer) -> AsyncIterator[httpx.AsyncClient]:
    readiness = server.context.readiness

    def set_current(space: str) -> None:
        readiness.current_space = space

    app = create_management_app(server.context, set_current, OperatorCalls(None, ""))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://management") as client:
        yield client


# -- by the name of another space


class Elsewhere:
    """A server on a socket that answers as the other space would, and keeps what it was asked."""

    def __init__(self, *, drops: int = 0) -> None:
        self.requests: list[bytes] = []
        self._drops = drops

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        self.requests.append(head + await reader.readexactly(length))
        if self._drops:
            self._drops -= 1
        else:
            body = b'[["other"]]'
            writer.write(
                b"HTTP/1.1 200 OK\r\nX-Embedserve-Vector-Space: %b\r\nX-Request-Id: theirs\r\nContent-Type: text/x\r\n"
                b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (OTHER.encode(), len(body), body)
            )
        writer.close()


def at(space_url: str) -> ServerSettings:
    """Settings under which all other spaces are at one address."""
    return ServerSettings().model_copy(update={"space_url": space_url})


@asynccontextmanager
async def forwarding(elsewhere: Elsewhere, server: InProcessServer) -> AsyncIterator[httpx.AsyncClient]:
    listening = await asyncio.start_server(elsewhere.answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    app = create_app(server.context, at(f"http://127.0.0.1:{port}"))
    async with (
        listening,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://docs") as client,
    ):
        yield client


async def test_what_comes_by_a_name_that_stands_for_another_space_is_answered_there_and_the_connection_ends() -> (
    None
):
    elsewhere = Elsewhere()
    async with serve_in_process() as server, forwarding(elsewhere, server) as client:
        body = {"inputs": "hello"}
        own = await client.post("/embed", json=body)
        server.context.readiness.current_space = OTHER
        headers = {"Authorization": "Bearer k", "X-Request-Id": "mine", "Connection": "keep-alive"}
        passed_on = await client.post("/embed?x=1", json=body, headers=headers)
        server.context.readiness.current_space = SPACE
        repeated = await client.post("/embed", json=body)
        counted = server.get_metric("embedserve_requests_total", {"route": "forwarded", "status": "200"})
    assert own.json() == repeated.json()
    assert own.headers["X-Embedserve-Vector-Space"] == repeated.headers["X-Embedserve-Vector-Space"] == SPACE
    assert "connection" not in own.headers
    assert passed_on.json() == [["other"]]
    assert passed_on.headers["X-Embedserve-Vector-Space"] == OTHER
    assert passed_on.headers["Connection"] == "close"
    assert passed_on.headers["Content-Type"] == "text/x"
    assert passed_on.headers.get_list("X-Request-Id") == ["mine"]
    (request,) = elsewhere.requests
    head, _, content = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /embed?x=1 HTTP/1.1\r\n")
    assert b"authorization: Bearer k" in head
    assert head.lower().count(b"connection:") <= 1 == head.lower().count(b"host:")
    assert json.loads(content) == body
    assert counted == 1


async def test_a_path_goes_on_as_it_was_written_so_that_no_second_request_hides_in_it() -> None:
    elsewhere = Elsewhere()
    hidden = "/embed%20HTTP/1.1%0d%0ahost:x%0d%0a%0d%0aGET%20/hidden?a=%0d%0a"
    async with serve_in_process() as server, forwarding(elsewhere, server) as client:
        server.context.readiness.current_space = OTHER
        answer = await client.get(httpx.URL("http://docs").copy_with(raw_path=hidden.encode()))
    assert answer.status_code == 200
    (request,) = elsewhere.requests
    assert request.startswith(f"GET {hidden} HTTP/1.1\r\n".encode())
    assert request.count(b"\r\n\r\n") == 1


async def test_a_head_request_is_passed_on() -> None:
    elsewhere = Elsewhere()
    async with serve_in_process() as server, forwarding(elsewhere, server) as client:
        server.context.readiness.current_space = OTHER
        answer = await client.head("/info")
    assert answer.status_code == 200
    assert len(elsewhere.requests) == 1


async def test_a_connection_that_ends_before_an_answer_is_tried_again() -> None:
    elsewhere = Elsewhere(drops=2)
    async with serve_in_process() as server, forwarding(elsewhere, server) as client:
        server.context.readiness.current_space = OTHER
        answer = await client.post("/embed", json={"inputs": "hello"})
    assert (answer.status_code, len(elsewhere.requests)) == (200, 3)


async def test_where_the_other_space_cannot_be_reached_the_answer_is_no_vector_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(space_client, "MAX_RETRY_SECONDS", 0.0)
    async with serve_in_process() as server:
        app = create_app(server.context, at("http://127.0.0.1:1"))
        server.context.readiness.current_space = OTHER
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://docs") as client:
            answer = await client.post("/embed", json={"inputs": "hello"})
            health = await client.get("/health")
    assert answer.status_code == 503
    assert OTHER in answer.json()["error"]
    assert health.status_code == 200, "the process itself is well"


async def test_a_request_goes_where_the_name_stood_when_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_client, "MAX_RETRY_SECONDS", 0.0)
    async with serve_in_process() as server:
        app = create_app(server.context, at("http://127.0.0.1:1"))
        server.context.readiness.current_space = OTHER

        async def body() -> AsyncIterator[bytes]:
            yield b'{"inputs": '
            server.context.readiness.current_space = SPACE
            yield b'"hello"}'

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://docs") as client:
            answer = await client.post("/embed", content=body())
    assert answer.status_code == 503
    assert OTHER in answer.json()["error"]


def test_the_other_space_is_found_by_the_first_digits_of_its_identity() -> None:
    assert build_space_address("http://docs-{space8}.search.svc", OTHER) == "http://docs-fedcba98.search.svc"
