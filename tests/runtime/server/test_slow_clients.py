"""Clients that take their time, over real sockets against a real process, with time limits of seconds.

What is sent or read at a pace sleeps between its pieces; nothing waits for anything by that.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_connection import Answer, HttpConnection, build_post, build_request, wait_for
from tests.support.models import small_minilm
from tests.support.monitored_server import MonitoredServer, start_monitored_server

# Scaled limits of the server. Its answer below is read at a pace that takes several times as long.
SECONDS = 2.0
BEFORE = f"""
from embedserve_runtime.api.middleware import disconnect
from embedserve_runtime.server import limits
disconnect.BODY_SECONDS = limits.HEAD_SECONDS = limits.WRITE_SECONDS = limits.IDLE_SECONDS = {SECONDS}
"""
# A byte in so many seconds is well within any limit of silence, and all of it well beyond the whole limit.
PACE_SECONDS = 0.1
MAX_BYTES = 300
INPUTS = 5_000
"""Their vectors are 23 MB, several times what the kernel holds for a connection."""
LARGE = {"inputs": ["a"] * INPUTS}
SMALL_BUFFER = 65_536
READ_BYTES, READ_PACE_SECONDS = 262_144, 0.08


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_minilm(tmp_path_factory.mktemp("slow") / "model")


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[MonitoredServer]:
    with start_monitored_server(model, model.parent / "scaled", before=BEFORE) as started:
        yield started


@pytest.fixture
def server(running: MonitoredServer) -> Iterator[MonitoredServer]:
    yield running
    running.close_connections()
    running.assert_is_sound()


def drip(connection: HttpConnection, piece: bytes) -> int:
    """Send the same at a pace until the server says something; how often it was sent."""
    for sent_bytes in range(MAX_BYTES):
        if connection.is_readable(PACE_SECONDS):
            return sent_bytes
        connection.send_until_cut(piece)
    raise AssertionError(f"{MAX_BYTES} times {piece!r} were taken without an answer")


UNENDING = {
    "a head": (b"GET /info HTTP/1.1\r\nhost: a\r\nx-slow: ", b"v"),
    "a target": (b"GET /", b"a"),
    "headers": (b"GET /info HTTP/1.1\r\nhost: a\r\n", b"a:\r\n"),
    "a body": (build_request("POST", "/embed", "content-length: 1000"), b" "),
    "chunks": (build_request("POST", "/embed", "transfer-encoding: chunked"), b"1\r\n \r\n"),
    "trailers": (
        build_request("POST", "/embed", "transfer-encoding: chunked", body=b"2\r\n{}\r\n0\r\n"),
        b"a:\r\n",
    ),
}


@pytest.mark.parametrize("is_first", [True, False], ids=["first request", "second request"])
@pytest.mark.parametrize("name", [*UNENDING])
def test_what_comes_byte_by_byte_is_408_in_the_end(
    server: MonitoredServer, name: str, is_first: bool
) -> None:
    connection = server.connect()
    if not is_first:
        connection.send(build_post("/embed", {"inputs": "a"}))
        assert connection.read_answer().status == 200
    beginning, piece = UNENDING[name]
    with server.assert_counts_one(408):
        connection.send(beginning)
        drip(connection, piece)
        answer = connection.read_answer()
        assert (answer.status, answer.get("connection")) == (408, "close"), answer
    assert connection.read_to_end().data == b""


@pytest.mark.parametrize("piece", [b"", b"\r\n"], ids=["silent", "empty lines"])
@pytest.mark.parametrize("beginning", [b"", build_post("/embed", {"inputs": "a"})], ids=["new", "kept"])
def test_a_connection_without_a_request_is_closed(
    server: MonitoredServer, beginning: bytes, piece: bytes
) -> None:
    connection = server.connect()
    connection.send(beginning)
    if beginning:
        assert connection.read_answer().status == 200
    if piece:
        drip(connection, piece)
    data = connection.read_to_end().data
    assert data == b"" or data.startswith(b"HTTP/1.1 408 "), data


@pytest.mark.parametrize("connection_header", ["close", "keep-alive"])
def test_a_client_that_stops_reading_is_let_go(server: MonitoredServer, connection_header: str) -> None:
    connection = server.connect(SMALL_BUFFER)
    connection.send(build_post("/embed", LARGE, f"connection: {connection_header}"))
    wait_for(connection.is_readable, bool, "the answer has begun")
    wait_for(lambda: server.has_open(connection), lambda holds: not holds, "the server's end is open")
    assert len(connection.read_to_end().data) < INPUTS * 1_000, "the answer was read whole after all"


def test_a_client_that_sends_ahead_and_never_reads_is_let_go(server: MonitoredServer) -> None:
    """The answers of requests that are sent ahead do not pile up in the server."""
    ahead = 200
    connection = server.connect(SMALL_BUFFER)
    with server.measure_growth() as growth:
        sending = threading.Thread(
            target=connection.send_until_cut, args=(build_post("/embed", LARGE) * ahead,)
        )
        sending.start()
        wait_for(connection.is_readable, bool, "the first answer has begun")
        wait_for(lambda: server.has_open(connection), lambda holds: not holds, "the server's end is open")
        sending.join()
    assert growth.max_bytes < 200 * 2**20


def test_a_client_that_reads_slowly_and_steadily_gets_all(server: MonitoredServer) -> None:
    connection = server.connect(SMALL_BUFFER)
    connection.send(build_post("/embed", LARGE))
    assert connection.is_readable(60)
    begun = time.monotonic()
    head, length, body = bytearray(), -1, bytearray()
    while not head or len(body) < length:
        data = connection.socket.recv(READ_BYTES)
        assert data, f"the end after {len(body)} of {length} bytes and {time.monotonic() - begun:.1f} s"
        body += data
        if not head and b"\r\n\r\n" in body:
            head, _, body = body.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        time.sleep(len(data) / READ_BYTES * READ_PACE_SECONDS)
    took = time.monotonic() - begun
    assert head.startswith(b"HTTP/1.1 200"), head
    assert len(json.loads(body)) == INPUTS
    assert took > 2 * SECONDS, "the client was too fast to prove anything"


def test_silent_connections_get_their_first_answer_after_sigterm(model: Path) -> None:
    settings = {"server": {"endpoint_drain_seconds": 0.0}}
    with start_monitored_server(model, model.parent / "stopping", settings) as server:
        connections = [server.connect() for _ in range(20)]
        wait_for(
            lambda: [server.has_open(connection) for connection in connections],
            all,
            "connections have been accepted",
        )
        server.server.stop(signal.SIGTERM)
        server.wait_for_line("stopping")
        answers: list[Answer] = []
        for number, connection in enumerate(connections):
            connection.send(build_post("/embed", {"inputs": f"text {number}"}))
        for connection in connections:
            answers.append(connection.read_answer())
            assert connection.read_to_end().data == b""
        assert [(answer.status, answer.get("connection")) for answer in answers] == [(200, "close")] * 20
        assert server.wait_for_exit() == 0
        assert not server.list_new_errors()


@pytest.mark.parametrize("workers", [1, 2])
def test_once_the_drain_has_ended_new_clients_are_refused_while_the_others_are_finished(
    model: Path, workers: int
) -> None:
    """Nobody would accept them: they would wait, and be reset when the process ends."""
    settings = {"server": {"endpoint_drain_seconds": 0.0, "http_workers": workers}}
    request = build_post("/embed", {"inputs": "a"})
    with start_monitored_server(model, model.parent / f"refusing-{workers}", settings) as server:
        slow = server.connect()
        slow.send(request[:-1])
        assert server.send_request(request).status == 200
        server.server.stop(signal.SIGTERM)
        server.wait_for_line("stopping")
        wait_for(lambda: is_refused(server), bool, "a new client is refused")
        slow.send(request[-1:])
        answer = slow.read_answer()
        assert (answer.status, answer.get("connection")) == (200, "close")
        assert server.wait_for_exit() == 0
        assert not server.list_new_errors()


def is_refused(server: MonitoredServer) -> bool:
    try:
        server.connect()
    except ConnectionRefusedError:
        return True
    return False
