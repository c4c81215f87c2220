"""The official client against the routes: vectors as it decodes them, errors as its own classes."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx2  # the client's own HTTP library
import numpy as np
import openai
import pytest

from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.scheduling.policy import Limits
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_runners import GatedRun


def client_of(server: InProcessServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://test/v1",
        api_key="unused",
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(transport=httpx2.ASGITransport(server.app)),
    )


@pytest.mark.parametrize("encoding_format", ["float", "base64", None])
async def test_vectors_arrive_as_the_plain_route_gives_them(encoding_format: Any) -> None:
    async with serve_in_process() as server, client_of(server) as client:
        want = (await server.client.post("/embed", json={"inputs": ["hello", "world"]})).json()
        options = {"encoding_format": encoding_format} if encoding_format else {}
        answer = await client.embeddings.create(model="any", input=["hello", "world"], **options)
    vectors: list[Any] = [item.embedding for item in answer.data]
    if encoding_format == "base64":  # asked for by name, the client hands it on undecoded
        vectors = [np.frombuffer(base64.b64decode(vector), dtype="<f4") for vector in vectors]
    np.testing.assert_array_equal(np.array(vectors, dtype=np.float32), np.array(want, dtype=np.float32))
    assert answer.usage.prompt_tokens == 6


async def test_dimensions_and_token_ids_arrive() -> None:
    async with serve_in_process(openai_token_ids=True) as server, client_of(server) as client:
        answer = await client.embeddings.create(model="any", input=[[5, 6], [7]], dimensions=3)
    assert [len(item.embedding) for item in answer.data] == [3, 3]
    assert answer.usage.total_tokens == 3


REFUSED = [
    pytest.param({"input": ""}, {}, openai.BadRequestError, "EmptyInput", id="empty"),
    pytest.param(
        {"input": "a", "dimensions": 99}, {}, openai.UnprocessableEntityError, "InvalidInput", id="invalid"
    ),
    pytest.param(
        {"input": "a"},
        {"x-embedserve-vector-space": "vs2-other"},
        openai.ConflictError,
        "VectorSpaceMismatch",
        id="another vector space",
    ),
]


@pytest.mark.parametrize(("request_fields", "headers", "error", "want_code"), REFUSED)
async def test_refusals_are_the_clients_own_exceptions(
    request_fields: Any, headers: dict[str, str], error: type[openai.APIStatusError], want_code: str
) -> None:
    async with serve_in_process() as server, client_of(server) as client:
        with pytest.raises(error) as caught:
            await client.embeddings.create(model="any", extra_headers=headers, **request_fields)
    assert caught.value.code == want_code
    assert caught.value.type == "invalid_request_error"


async def test_a_full_queue_is_a_rate_limit_error() -> None:
    gate = GatedRun()
    async with (
        serve_in_process(gate, limits=Limits(8, 100, queue_inputs=1)) as server,
        client_of(server) as client,
    ):
        running = asyncio.create_task(server.client.post("/embed", json={"inputs": "hello"}))
        await asyncio.to_thread(gate.entered.acquire)
        waiting = asyncio.create_task(server.client.post("/embed", json={"inputs": "world"}))
        while not server.dispatcher.queued_inputs:  # noqa: ASYNC110  # turns of the loop, no time
            await asyncio.sleep(0)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.embeddings.create(model="any", input="hello")
        gate.release()
        await asyncio.gather(running, waiting)
    assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_failures_of_the_server_are_internal_server_errors() -> None:
    def broken(batch: PackedBatch) -> Any:
        raise EngineFailure("out of memory")

    async with serve_in_process(broken) as server, client_of(server) as client:
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await client.embeddings.create(model="any", input="hello")
    async with serve_in_process(ready=False) as server, client_of(server) as client:
        with pytest.raises(openai.InternalServerError, match="not ready") as caught:
            await client.embeddings.create(model="any", input="hello")
    assert caught.value.status_code == 503
