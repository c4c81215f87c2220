"""Requests that are answered without a task: on real sockets, beside the same server that answers all in tasks."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from embedserve_runtime.api.endpoint import Visit
from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.frontends.setup import Watches
from embedserve_runtime.httpd.server import Server
from embedserve_runtime.httpd.turn import QuickTurn
from embedserve_runtime.service import Small
from tests.runtime.api.conformance import SECTIONS, Row
from tests.runtime.api.test_conformance import SERVERS
from tests.runtime.serve_kit import Bench, GatedRun, bench, card_of, mean_of_ids

QUICK = ("/embed", "/v1/embeddings", "/embeddings")
ROWS = [
    pytest.param(row, id=row.what)
    for rows in SECTIONS.values()
    for row in rows
    if row.request.split(" ")[-1] in QUICK and not row.request.startswith("GET")
]
# What no two answers have in common.
OWN = {
    "date",
    "x-request-id",
    *(f"x-{name}-time" for name in ("compute", "total", "tokenization", "queue", "inference")),
}


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
        return Reply(
            int(first.split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))
        )

    async def ask(self, path: str, body: bytes, **headers: str) -> Reply:
        self.send(path, body, **headers)
        return await self.reply()


@asynccontextmanager
async def listening(server: Bench, *, quick: bool, tasks: bool = True) -> AsyncIterator[int]:
    """A port of it. tasks: whether there is an application behind the quick routes."""

    async def nothing(*_: object) -> None:
        raise AssertionError("this request was left to a task")

    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        app = server.app if tasks else nothing
        made = Server(app, sock, Watches(server.around.metrics), server.app.quick if quick else {})
        try:
            yield sock.getsockname()[1]
        finally:
            made.abort()
            await made.finished()
            made.close()


@asynccontextmanager
async def connected(server: Bench, *, quick: bool = True, tasks: bool = True) -> AsyncIterator[Client]:
    async with listening(server, quick=quick, tasks=tasks) as port:
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        try:
            yield client
        finally:
            client.writer.close()


def same(reply: Reply) -> tuple[int, dict[str, str], Any]:
    """What has to be the same of two answers to one request. Times and ids are not."""
    body = json.loads(reply.body) if reply.body else None
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if name != "request_id"}
        if isinstance(body.get("error"), dict):
            body["error"].pop("request_id", None)
    headers = {name: value for name, value in reply.headers.items() if name not in OWN}
    if b"request_id" in reply.body:  # of some length
        del headers["content-length"]
    assert set(reply.headers) >= {"date", "x-request-id"}
    return reply.status, headers, body


@pytest.mark.parametrize("row", ROWS)
async def test_both_ways_answer_alike(row: Row) -> None:
    path = row.request.split(" ")[-1]
    content = row.body if isinstance(row.body, bytes | None) else json.dumps(row.body).encode()
    headers = {} if isinstance(row.body, bytes | None) else {"content-type": "application/json"}
    options = {"card": card_of(prompts={"query": "query: "}), **SERVERS[row.server]}
    replies = []
    async with bench(**options) as server:
        for quick in (True, False):
            async with connected(server, quick=quick) as client:
                # The second comes with a head that is known.
                replies += [await client.ask(path, content or b"", **headers, **row.headers)]
                if replies[-1].headers.get("connection") != "close":
                    replies += [await client.ask(path, content or b"", **headers, **row.headers)]
        route = "/v1/embeddings" if path == "/embeddings" else path
        labels = {"route": route, "status": str(row.want_status)}
        counted = server.metric("embedserve_requests_total", labels)
    first = replies[0]
    answer = httpx.Response(first.status, headers=first.headers, content=first.body)
    assert first.status == row.want_status
    assert row.check(answer), answer.text
    assert [same(reply) for reply in replies] == [same(first)] * len(replies)
    assert counted == len(replies)


SMALL = {
    "/embed": {"inputs": "hello world"},
    "/v1/embeddings": {"input": ["hello", "world"], "encoding_format": "base64"},
}


@pytest.mark.parametrize(("path", "body"), SMALL.items(), ids=SMALL)
async def test_small_requests_need_no_task(path: str, body: dict[str, Any]) -> None:
    async with bench() as server, connected(server, tasks=False) as client:
        for _ in range(3):
            assert (await client.ask(path, json.dumps(body).encode())).status == 200


@pytest.mark.parametrize(
    "body", [SMALL["/embed"], {"inputs": ""}, {"inputs": 1.5}], ids=["answered", "refused", "misshaped"]
)
async def test_a_small_request_leaves_nothing_for_the_collector(body: dict[str, Any]) -> None:
    def alive() -> list[object]:
        return [one for one in gc.get_objects() if type(one) in {QuickTurn, Visit, Small}]

    async with bench() as server, connected(server, tasks=False) as client:
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await client.ask("/embed", json.dumps(body).encode())
            # The engine's thread may not have let go of the last one yet.
            assert len(alive()) <= 3
        finally:
            gc.enable()


async def test_requests_that_come_together_get_their_own_answers() -> None:
    texts = ["hello", "", "world " * 40, "deep learning", "a", "numbers of a list"]
    wanted = {"normalize": False}
    async with bench() as server, listening(server, quick=True) as port:
        clients = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in texts]
        alone = [
            await clients[0].ask("/embed", json.dumps({"inputs": text} | wanted).encode()) for text in texts
        ]
        for client, text in zip(clients, texts, strict=True):
            client.send("/embed", json.dumps({"inputs": text} | wanted).encode())
        together = [await client.reply() for client in clients]
        for client in clients:
            client.writer.close()
    assert [(one.status, one.body) for one in together] == [(one.status, one.body) for one in alone]
    assert [one.status for one in alone] == [200, 400, 200, 200, 200, 200]


async def test_requests_sent_ahead_are_answered_in_their_order_by_both_ways() -> None:
    bodies = [json.dumps({"inputs": ["hello world"] * (1 + 30 * (n % 2))}).encode() for n in range(6)]
    async with bench() as server, connected(server) as client:
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
    async with bench(run) as server, listening(server, quick=True, tasks=False) as port:
        clients = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in texts]
        for client, text in zip(clients, texts, strict=True):
            client.send("/embed", json.dumps({"inputs": text}).encode())
        statuses = [(await client.reply()).status for client in clients]
        for client in clients:
            client.writer.close()
    assert statuses == [200, 500, 200]


async def test_a_client_that_leaves_takes_its_request_along_and_is_counted() -> None:
    gate = GatedRun(mean_of_ids())
    route = {"route": "/embed", "status": "499"}
    async with bench(gate) as server, listening(server, quick=True, tasks=False) as port:
        stays, leaves = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(2)]
        stays.send("/embed", b'{"inputs":"hello"}')
        await asyncio.to_thread(gate.entered.acquire)
        leaves.send("/embed", b'{"inputs":"world"}')
        while server.dispatcher.queued_inputs != 1:  # noqa: ASYNC110  # turns of the loop, no time
            await asyncio.sleep(0)
        leaves.writer.close()
        while server.metric("embedserve_requests_total", route) != 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert server.dispatcher.queued_inputs == 0
        gate.release()
        assert (await stays.reply()).status == 200
        stays.writer.close()
        assert server.metric("embedserve_requests_in_flight") == 0
        assert server.around.intake.pending == 0
    assert len(gate.batches) == 1
