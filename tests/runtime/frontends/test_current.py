"""A process that is told that the service's name stands for another vector space by now."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.models import small_minilm
from tests.support.server_process import start_server

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nX-Embedserve-Vector-Space: %b\r\n\r\n[[1]]"


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.thorough), 2])
async def test_a_connection_of_before_gets_no_vectors_of_before_and_the_own_name_goes_on_getting_them(
    tmp_path: Path, workers: int
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        writer.write(ANSWER % other_space.encode())
        writer.close()

    async with AsyncExitStack() as stack:
        other_server = await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", 0))
        # A space whose first digits are the port where it is found.
        other_space = f"vs2-{other_server.sockets[0].getsockname()[1]:08d}{0:012}"
        settings = {
            "http_workers": workers,
            "pinned_port": 0,
            "space_url": "http://127.0.0.1:{space8}",
        }
        server = stack.enter_context(
            start_server(small_minilm(tmp_path / "model"), tmp_path, {"server": settings})
        )
        await asyncio.to_thread(server.wait_until_ready)

        async def spaces(client: httpx.AsyncClient, count: int) -> list[tuple[str, str | None]]:
            answers = [await client.post("/embed", json={"inputs": "a"}) for _ in range(count)]
            return [
                (answer.headers["X-Embedserve-Vector-Space"], answer.headers.get("Connection"))
                for answer in answers
            ]

        by_name = await stack.enter_async_context(httpx.AsyncClient(base_url=server.address))
        by_space = await stack.enter_async_context(httpx.AsyncClient(base_url=server.space_address))
        management = await stack.enter_async_context(httpx.AsyncClient(base_url=server.management))
        ((own, connection),) = await spaces(by_name, 1)
        assert connection is None, "this connection is still open when the name changes"
        notice = await management.put("/current", json={"vector_space": other_space})
        assert notice.json() == {"vector_space": own, "current": False}
        # A front end of its own is told a moment later.
        while (spaces_of_answers := await spaces(by_name, 1)) == [(own, None)]:
            assert workers > 1
        assert spaces_of_answers == [(other_space, "close")]
        assert await spaces(by_space, 2) == [(own, None)] * 2
        assert (await management.get("/selfcheck")).json()["vector_space"] == own
        await management.put("/current", json={"vector_space": own})
        while (spaces_of_answers := await spaces(by_name, 1)) == [(other_space, "close")]:
            assert workers > 1
        assert spaces_of_answers == [(own, None)]
