"""The HTTP server on real sockets, with an application that says what it got."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from embedserve_runtime.httpd import connection as connection_module
from embedserve_runtime.httpd import server as server_module
from embedserve_runtime.httpd.incoming import HEAD_BYTES
from embedserve_runtime.httpd.server import Server


@dataclass
class Seen:
    """Connections and refusals that the server told of, and an application that a test can hold."""

    open: int = 0
    refusals: list[int] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    gone: int = 0
    held: asyncio.Event = field(default_factory=asyncio.Event)

    def connection_opened(self) -> None:
        self.open += 1

    def connection_closed(self) -> None:
        self.open -= 1

    def refused(self, status: int) -> None:
        self.refusals.append(status)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """`/early` does not read, `/held` waits for the client's end or the test, `/broken` raises."""
        path = scope["path"]
        self.requests.append(path)
        body = b""
        if path == "/broken":
            raise ValueError("a bug")
        if path != "/early":
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    self.gone += 1
                    return
                body += message["body"]
                more = message["more_body"]
        if path == "/held" and await self._is_left(receive):
            self.gone += 1
            return
        content = (
            b"x" * 8_000_000
            if path == "/large"
            else json.dumps(
                {
                    "method": scope["method"],
                    "path": path,
                    "query": scope["query_string"].decode(),
                    "body": len(body),
                }
            ).encode()
        )
        headers = [(b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _is_left(self, receive: Any) -> bool:
        left, released = asyncio.create_task(receive()), asyncio.create_task(self.held.wait())
        done, waiting = await asyncio.wait((left, released), return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return left in done


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers.get("content-length", 0)) if has_body else 0
        return int(first.split()[1]), headers, await self.reader.readexactly(length)

    async def ask(self, data: bytes) -> dict[str, Any]:
        await self.send(data)
        status, _, body = await self.answer()
        assert status == 200
        answer: dict[str, Any] = json.loads(body)
        return answer

    async def is_ended(self) -> bool:
        return await self.reader.read() == b""


@dataclass
class Running:
    server: Server
    seen: Seen
    port: int
    clients: list[Client] = field(default_factory=list)

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def until_open(self, count: int) -> None:
        while self.seen.open != count:  # noqa: ASYNC110  # turns of the loop, no time
            await asyncio.sleep(0)


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        seen = Seen()
        made = Running(Server(seen.app, sock, seen), seen, sock.getsockname()[1])
        try:
            yield made
        finally:
            for client in made.clients:
                client.writer.close()
            made.server.abort()
            await made.server.finished()
            made.server.close()
            assert seen.open == 0


def post(path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: a", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


GET = b"GET /a?b=c HTTP/1.1\r\nhost: a\r\n\r\n"
READ = {
    "a request without a body": (GET, {"method": "GET", "path": "/a", "query": "b=c", "body": 0}),
    "a body of a given length": (post("/p", b"12345"), {"body": 5}),
    "a body in chunks": (
        b"POST /p HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n",
        {"body": 7},
    ),
    "an escaped path": (b"GET /%C3%A9%20x HTTP/1.1\r\nhost: a\r\n\r\n", {"path": "/é x"}),
    "a whole URL, as proxies get it": (
        b"GET http://a:1/b?c HTTP/1.1\r\nhost: a\r\n\r\n",
        {"path": "/b", "query": "c"},
    ),
    "an offer to speak another protocol": (
        post("/p", b"123", "connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABk"),
        {"body": 3},
    ),
    "a body larger than what is buffered": (post("/p", b"x" * 2_000_000), {"body": 2_000_000}),
}


@pytest.mark.parametrize(("data", "want"), READ.values(), ids=READ)
async def test_requests_are_read_and_the_connection_lives_on(data: bytes, want: dict[str, object]) -> None:
    async with running() as run:
        client = await run.client()
        for _ in range(2):
            got = await client.ask(data)
            assert {key: got[key] for key in want} == want
    assert run.seen.refusals == []


@pytest.mark.parametrize("step", [1, 3])
async def test_a_request_may_come_byte_by_byte(step: int) -> None:
    data = post("/p", b"hello")
    async with running() as run:
        client = await run.client()
        for start in range(0, len(data), step):
            await client.send(data[start : start + step])
            await asyncio.sleep(0)
        assert (await client.answer())[0] == 200


async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    async with running() as run:
        client = await run.client()
        await client.send(b"".join(post(f"/{index}", b"x" * index) for index in range(20)))
        answers = [json.loads((await client.answer())[2]) for _ in range(20)]
    assert [(one["path"], one["body"]) for one in answers] == [(f"/{index}", index) for index in range(20)]


ENDS = {
    "asked for by the client": post("/p", b"", "connection: close"),
    "HTTP/1.0": b"GET /a HTTP/1.0\r\n\r\n",
}


@pytest.mark.parametrize("data", ENDS.values(), ids=ENDS)
async def test_the_connection_ends_after_the_answer(data: bytes) -> None:
    async with running() as run:
        client = await run.client()
        await client.send(data)
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await client.is_ended()


async def test_http_10_may_keep_the_connection_if_it_asks() -> None:
    async with running() as run:
        client = await run.client()
        for _ in range(2):
            await client.send(b"GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
            status, headers, _ = await client.answer()
            assert (status, headers["connection"]) == (200, "keep-alive")


async def test_head_is_answered_without_a_body() -> None:
    async with running() as run:
        client = await run.client()
        await client.send(GET.replace(b"GET", b"HEAD") + GET)
        status, headers, _ = await client.answer(has_body=False)
        assert status == 200
        assert len((await client.answer())[2]) == int(headers["content-length"]) - len("HEAD") + len("GET")


async def test_a_client_that_waits_for_it_is_told_to_send_its_body() -> None:
    async with running() as run:
        client = await run.client()
        request = post("/p", b"12345", "expect: 100-continue")
        head, body = request[:-5], request[-5:]
        await client.send(head)
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.ask(body))["body"] == 5


async def test_a_body_that_nobody_wants_is_not_asked_for() -> None:
    async with running() as run:
        client = await run.client()
        await client.send(post("/early", b"12345", "expect: 100-continue")[:-5])
        assert (await client.answer())[0] == 200
        assert await client.is_ended()


async def test_an_unread_body_is_read_away_before_the_next_request() -> None:
    async with running() as run:
        client = await run.client()
        assert (await client.ask(post("/early", b"x" * 100_000)))["body"] == 0
        assert (await client.ask(post("/p", b"12")))["body"] == 2


async def test_an_unread_body_without_end_ends_the_connection_after_the_answer() -> None:
    async with running() as run:
        client = await run.client()
        head = post("/early", b"", "x: y").replace(b"content-length: 0", b"content-length: 100000000")
        await client.send(head)
        assert (await client.answer())[0] == 200
        await client.send(b"x" * 2_000_000)
        assert await client.is_ended()


REFUSED = {
    "no HTTP": (b"\x00\x01\x02\r\n\r\n", 400),
    "a wrong length": (b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
    "two ways to say the length": (
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "a head without end": (b"GET / HTTP/1.1\r\nx: " + b"y" * (HEAD_BYTES + 300_000), 431),
    "headers without end": (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 60_000, 431),
}


@pytest.mark.parametrize(("data", "want_status"), REFUSED.values(), ids=REFUSED)
async def test_what_is_no_request_is_refused_and_counted(data: bytes, want_status: int) -> None:
    async with running() as run:
        client = await run.client()
        for start in range(0, len(data), 50_000):
            client.writer.write(data[start : start + 50_000])
            await asyncio.sleep(0)
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (want_status, "close")
        assert await client.is_ended()
        assert run.seen.refusals == [want_status]
        assert run.seen.requests == []


async def test_a_broken_body_ends_only_its_own_connection() -> None:
    async with running() as run:
        client, other = await run.client(), await run.client()
        await client.send(b"POST /p HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
        assert (await client.answer())[0] == 400
        assert (await other.ask(GET))["path"] == "/a"
        assert run.seen.gone == 1


async def test_a_client_that_goes_away_is_noticed_while_its_request_runs() -> None:
    async with running() as run:
        client = await run.client()
        await client.send(post("/held"))
        while not run.seen.requests:  # noqa: ASYNC110  # turns of the loop, no time
            await asyncio.sleep(0)
        client.writer.close()
        await run.until_open(0)
        while not run.seen.gone:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_an_application_that_breaks_ends_the_connection() -> None:
    async with running() as run:
        client = await run.client()
        await client.send(post("/broken"))
        assert await client.is_ended()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All time limits at once."""
    for name in ("HEAD_SECONDS", "WRITE_SECONDS", "LINGER_SECONDS", "LAST_CHANCE_SECONDS"):
        monkeypatch.setattr(connection_module, name, 0.01)
    monkeypatch.setattr(server_module, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.01)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("data", "want_answer"),
    [(b"", b""), (GET[:-2], b"HTTP/1.1 408 "), (post("/large"), b"HTTP/1.1 200 ")],
    ids=["idle", "half a head", "an answer that is not taken"],
)
async def test_slow_clients_are_let_go(data: bytes, want_answer: bytes) -> None:
    async with running() as run:
        client = await run.client()
        await client.send(data)
        await run.until_open(1)
        await run.until_open(0)
        assert (await client.reader.read(13)).startswith(want_answer)


@pytest.mark.usefixtures("impatient")
async def test_a_request_that_is_worked_on_has_no_time_limit_here() -> None:
    async with running() as run:
        slow, idle = await run.client(), await run.client()
        await slow.send(post("/held"))
        await run.until_open(2)
        assert await idle.is_ended()
        run.seen.held.set()
        assert (await slow.answer())[0] == 200


async def test_stopping_answers_what_is_on_its_way_and_closes_the_rest() -> None:
    async with running() as run:
        busy, idle = await run.client(), await run.client()
        await idle.ask(GET)
        await busy.send(post("/held") + post("/second"))
        while "/held" not in run.seen.requests:  # noqa: ASYNC110  # turns of the loop, no time
            await asyncio.sleep(0)
        run.server.stop()
        assert await idle.is_ended()
        run.seen.held.set()
        assert (await busy.answer())[0] == 200
        await run.server.finished()
