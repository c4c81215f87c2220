"""gRPC while the service's name stands for another vector space: calls are passed on to that one's own name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from grpc import StatusCode, aio

from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.rpc import forwarding
from embedserve_runtime.rpc.server import RpcPorts
from tests.runtime.rpc.rpc_kit import Metadata, Reflected, Served, reflected, served
from tests.support.tiny_models import SPACE, build_card, build_classifier_card

OTHER = "vs2-fedcba9876543210fedc"
HEADER = "x-embedserve-vector-space"
EMBED, STREAM = "tei.v1.Embed/Embed", "tei.v1.Embed/EmbedStream"
RERANK_STREAM = "tei.v1.Rerank/RerankStream"


class Two(NamedTuple):
    """A server of each space. `by_name`: of a client that came to the old one by the service's name."""

    old: Served
    new: Served
    by_name: Reflected

    def tell(self, space: str) -> None:
        for server in (self.old, self.new):
            server.bench.context.readiness.current_space = space


@asynccontextmanager
async def two(card: ModelCard) -> AsyncIterator[Two]:
    moved = replace(card, vector_space=OTHER)
    async with served(card=moved, ports=RpcPorts("127.0.0.1", 0, 0)) as new:
        ports = RpcPorts("127.0.0.1", 0, 0, new.server.space_address)
        async with served(card=card, ports=ports) as old:
            yield Two(old, new, old.client)


async def space_of(client: Reflected, path: str = EMBED, metadata: Metadata = (), **fields: Any) -> str:
    """Return the vector space of an answer, as its metadata tells it."""
    call = client.call(path)(client.message(path, fields or {"inputs": "hello"}), metadata=metadata)
    (space,) = [value for name, value in await call.initial_metadata() if name == HEADER]
    assert await call
    return str(space)


async def test_a_kept_connection_gets_the_other_space_from_the_next_call_on_and_the_own_name_keeps_its_own() -> (
    None
):
    async with two(build_card()) as servers:
        assert servers.old.server.space_address is not None
        async with reflected(servers.old.server.space_address) as by_space:
            assert await space_of(servers.by_name) == await space_of(by_space) == SPACE
            servers.tell(OTHER)
            assert [await space_of(servers.by_name) for _ in range(3)] == [OTHER] * 3
            assert await space_of(servers.by_name, "embedserve.v1.Embeddings/Encode", texts=["a"]) == OTHER
            assert await space_of(by_space) == SPACE
            servers.tell(SPACE)
            assert await space_of(servers.by_name) == SPACE, "the name has come back"


async def test_what_the_other_space_refuses_is_refused_in_its_words() -> None:
    async with two(build_card()) as servers:
        servers.tell(OTHER)
        code, message, trailers = await servers.by_name.refusal(EMBED, inputs="")
        assert (code, trailers["x-embedserve-reason"]) == (StatusCode.INVALID_ARGUMENT, "EmptyInput")
        assert message
        code, message, _ = await servers.by_name.refusal(EMBED, ((HEADER, SPACE),), inputs="hello")
        assert (code, OTHER in message) == (StatusCode.FAILED_PRECONDITION, True)


async def test_a_stream_of_before_ends_at_its_next_message_and_one_of_after_is_passed_on_whole() -> None:
    async with two(build_card()) as servers:
        waiting: asyncio.Queue[str | None] = asyncio.Queue()

        async def messages() -> AsyncIterator[Any]:
            while (text := await waiting.get()) is not None:
                yield servers.by_name.message(STREAM, {"inputs": text})

        call = servers.by_name.call(STREAM)(messages())
        answers = aiter(call)
        waiting.put_nowait("hello")
        assert await anext(answers)
        assert (HEADER, SPACE) in tuple(await call.initial_metadata())
        servers.tell(OTHER)
        waiting.put_nowait("world")
        with pytest.raises(aio.AioRpcError, match="send the rest in another") as caught:
            await anext(answers)
        assert caught.value.code() is StatusCode.UNAVAILABLE
        whole = servers.by_name.call(STREAM)(
            servers.by_name.message(STREAM, {"inputs": letter}) for letter in "abc"
        )
        assert (HEADER, OTHER) in tuple(await whole.initial_metadata())
        assert len([letter async for letter in whole]) == 3


async def test_a_stream_with_one_answer_is_passed_on() -> None:
    async with two(build_classifier_card("relevant")) as servers:
        servers.tell(OTHER)
        requests = (
            servers.by_name.message(RERANK_STREAM, {"query": "hello", "text": text}) for text in ("a", "b")
        )
        answer = await servers.by_name.call(RERANK_STREAM)(requests)
        assert len(answer.ranks) == 2


async def test_a_space_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "MAX_RETRY_SECONDS", 0.05)
    async with served(ports=RpcPorts("127.0.0.1", 0, None, "127.0.0.1:9")) as server:
        server.bench.context.readiness.current_space = OTHER
        code, message, _ = await server.client.refusal(EMBED, inputs="hello")
        assert (code, OTHER in message) == (StatusCode.UNAVAILABLE, True)


async def test_without_an_address_to_forward_calls_to_they_are_answered_here() -> None:
    async with served() as server:
        server.bench.context.readiness.current_space = OTHER
        assert await space_of(server.client) == SPACE
