"""Small requests that come together share work, on real sockets: each gets what it would have got alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from tests.support.in_process_server import InProcessServer, listen, serve_in_process
from tests.support.tiny_runners import GatedRun, build_mean_run


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, path: str, body: bytes, **headers: str) -> None:
        lines = [f"POST {path} HTTP/1.1", "host: a", *(f"{name}: {value}" for name, value in headers.items())]
        lines.append(f"content-length: {len(body)}")
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def reply(self) -> Reply:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return Reply(int(first.split()[1]), headers, body)

    async def ask(self, path: str, body: bytes, **headers: str) -> Reply:
        self.send(path, body, **headers)
        return await self.reply()


@asynccontextmanager
async def connected(server: InProcessServer, count: int = 1) -> AsyncIterator[list[Client]]:
    async with listen(server) as port:
        clients = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(count)]
        try:
            yield clients
        finally:
            for client in clients:
                client.writer.close()


async def test_requests_that_come_together_get_their_own_answers() -> None:
    texts = ["hello", "", "world " * 40, "deep learning", "a", "numbers of a list"]
    options = {"normalize": False}
    async with serve_in_process() as server, connected(server, len(texts)) as clients:
        alone = [
            await clients[0].ask("/embed", json.dumps({"inputs": text} | options).encode()) for text in texts
        ]
        for client, text in zip(clients, texts, strict=True):
            client.send("/embed", json.dumps({"inputs": text} | options).encode())
        together = [await client.reply() for client in clients]
    assert [(answer.status, answer.body) for answer in together] == [
        (answer.status, answer.body) for answer in alone
    ]
    assert [answer.status for answer in alone] == [200, 400, 200, 200, 200, 200]


async def test_requests_sent_ahead_are_answered_in_their_order_whatever_their_size() -> None:
    bodies = [json.dumps({"inputs": ["hello world"] * (1 + 30 * (n % 2))}).encode() for n in range(6)]
    async with serve_in_process() as server, connected(server) as (client,):
        for body in bodies:
            client.send("/embed", body)
        rows = [len(json.loads((await client.reply()).body)) for _ in bodies]
    assert rows == [1, 31, 1, 31, 1, 31]


async def test_one_bad_row_fails_only_its_own_request() -> None:
    def run(batch: PackedBatch) -> FloatArray:
        rows = np.ones((len(batch.lengths), 8), dtype=np.float32)
        rows[batch.lengths == 3] = np.nan
        return rows

    texts = ["hello world", "hello", "a vector is"]  # `hello` has three tokens with its special ones
    async with serve_in_process(run) as server, connected(server, len(texts)) as clients:
        for client, text in zip(clients, texts, strict=True):
            client.send("/embed", json.dumps({"inputs": text}).encode())
        statuses = [(await client.reply()).status for client in clients]
    assert statuses == [200, 500, 200]


async def test_a_client_that_leaves_takes_its_request_along_and_is_counted() -> None:
    gate = GatedRun(build_mean_run())
    route = {"route": "/embed", "status": "499"}
    async with serve_in_process(gate) as server, connected(server, 2) as (stays, leaves):
        stays.send("/embed", b'{"inputs":"hello"}')
        await asyncio.to_thread(gate.entered.acquire)
        leaves.send("/embed", b'{"inputs":"world"}')
        while server.dispatcher.queued_inputs != 1:  # noqa: ASYNC110  # turns of the loop, no time
            await asyncio.sleep(0)
        leaves.writer.close()
        while server.get_metric("embedserve_requests_total", route) != 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert server.dispatcher.queued_inputs == 0
        gate.release()
        assert (await stays.reply()).status == 200
        assert server.get_metric("embedserve_requests_in_flight") == 0
        assert server.context.memory.pending == 0
    assert len(gate.batches) == 1
