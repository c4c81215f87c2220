"""Messages take memory from the same bound as the bodies of HTTP requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from grpc import StatusCode, aio

from embedserve_runtime.api.memory import RequestMemory
from tests.runtime.rpc.rpc_kit import Served, served, until
from tests.support.tiny_runners import GatedRun

EMBED, STREAM = "tei.v1.Embed/Embed", "tei.v1.Embed/EmbedStream"
CHECK = "grpc.health.v1.Health/Check"
ROOM = 64 * 2**10
# There is room for four of them and not for five.
LONG: dict[str, Any] = {"inputs": "hello " * (ROOM // 27), "truncate": True}
COUNT = 40


class Streamed(NamedTuple):
    server: Served
    run: GatedRun
    call: Any

    @property
    def pending(self) -> int:
        return self.server.bench.context.memory.pending

    @property
    def in_flight(self) -> float:
        """Messages that the server has received and not answered."""
        return self.server.bench.get_metric("embedserve_requests_in_flight") or 0


@asynccontextmanager
async def stream_of_long_messages() -> AsyncIterator[Streamed]:
    """A stream of which the server has read as much as it will, while the engine is held."""
    run = GatedRun()
    async with served(run, memory=RequestMemory(2**20, ROOM)) as server:
        call = server.client.call(STREAM)(server.client.message(STREAM, LONG) for _ in range(COUNT))
        streamed = Streamed(server, run, call)
        await until(lambda: streamed.in_flight >= 3)
        for _ in range(20):  # each a way to the server and back, in which it could have read more
            await server.client.ask(CHECK)
        try:
            yield streamed
        finally:
            run.release()
            call.cancel()


async def test_a_stream_stops_reading_while_there_is_no_room_and_goes_on_when_there_is() -> None:
    async with stream_of_long_messages() as streamed:
        assert (streamed.in_flight, streamed.pending <= ROOM) == (4, True)
        streamed.run.release()
        answers = 0
        async for _ in streamed.call:
            answers += 1
            assert streamed.pending <= ROOM
        assert answers == COUNT
        assert streamed.pending == 0


async def test_what_a_stream_holds_is_not_there_for_single_calls_and_http_requests() -> None:
    async with stream_of_long_messages() as streamed:
        status, _, trailers = await streamed.server.client.refusal(EMBED, **LONG)
        assert (status, int(trailers["grpc-retry-pushback-ms"])) == (StatusCode.RESOURCE_EXHAUSTED, 1000)
        answer = await streamed.server.bench.client.post("/embed", json=LONG)
        assert answer.status_code == 429


async def test_what_http_requests_hold_is_not_there_for_single_calls() -> None:
    memory = RequestMemory(2**20, ROOM)
    async with served(memory=memory) as server:
        memory.reserve(ROOM)
        status, _, _ = await server.client.refusal(EMBED, inputs="a")
        memory.release(ROOM)
        assert status is StatusCode.RESOURCE_EXHAUSTED
        assert (await server.client.ask(EMBED, inputs="a")).embeddings


async def test_a_stream_is_answered_message_by_message_while_others_hold_all_the_memory() -> None:
    memory = RequestMemory(2**20, ROOM)
    async with served(memory=memory) as server:
        memory.reserve(ROOM)
        answers = await server.client.stream(STREAM, [LONG] * 5)
        assert (len(answers), memory.pending) == (5, ROOM)


async def test_streams_that_share_too_little_room_are_all_answered() -> None:
    memory = RequestMemory(2**20, ROOM)
    async with served(memory=memory) as server:
        streams = [server.client.stream(STREAM, [LONG] * 10) for _ in range(8)]
        assert [len(answers) for answers in await asyncio.gather(*streams)] == [10] * 8
        assert memory.pending == 0


@pytest.mark.parametrize("path", [EMBED, STREAM])
async def test_a_message_that_can_never_have_room_is_refused(path: str) -> None:
    async with served(memory=RequestMemory(2**20, ROOM)) as server:
        too_long: dict[str, Any] = {"inputs": "hello " * ROOM, "truncate": True}
        messages = (
            server.client.ask(path, **too_long) if path == EMBED else server.client.stream(path, [too_long])
        )
        with pytest.raises(aio.AioRpcError) as caught:
            await messages
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert server.bench.context.memory.pending == 0


async def test_a_cancelled_stream_gives_its_room_back() -> None:
    async with stream_of_long_messages() as streamed:
        streamed.call.cancel()
        await until(lambda: streamed.pending == 0)
        assert streamed.in_flight == 0
