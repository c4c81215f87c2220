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

from tests.runtime.serve.wire import Answer, Target, Wire, post, request, target, wait_for
from tests.support.models import small_minilm

# Scaled limits of the server. Its answer below is read at a pace that takes several times as long.
SECONDS = 2.0
BEFORE = f"""
from embedserve_runtime.server import limits
limits.HEAD_SECONDS = limits.BODY_SECONDS = limits.WRITE_SECONDS = limits.IDLE_SECONDS = {SECONDS}
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
def running(model: Path) -> Iterator[Target]:
    with target(model, model.parent / "scaled", before=BEFORE) as started:
        yield started


@pytest.fixture
def server(running: Target) -> Iterator[Target]:
    yield running
    running.close_wires()
    running.check_good()


def drip(wire: Wire, piece: bytes) -> int:
    """Send the same at a pace until the server says something; how often it was sent."""
    for sent in range(MAX_BYTES):
        if wire.is_readable(PACE_SECONDS):
            return sent
        wire.send_or_be_cut(piece)
    raise AssertionError(f"{MAX_BYTES} times {piece!r} were taken without an answer")


UNENDING = {
    "a head": (b"GET /info HTTP/1.1\r\nhost: a\r\nx-slow: ", b"v"),
    "a target": (b"GET /", b"a"),
    "headers": (b"GET /info HTTP/1.1\r\nhost: a\r\n", b"a:\r\n"),
    "a body": (request("POST", "/embed", "content-length: 1000"), b" "),
    "chunks": (request("POST", "/embed", "transfer-encoding: chunked"), b"1\r\n \r\n"),
    "trailers": (
        request("POST", "/embed", "transfer-encoding: chunked", body=b"2\r\n{}\r\n0\r\n"),
        b"a:\r\n",
    ),
}


@pytest.mark.parametrize("is_first", [True, False], ids=["first request", "second request"])
@pytest.mark.parametrize("name", [*UNENDING])
def test_what_comes_byte_by_byte_is_408_in_the_end(server: Target, name: str, is_first: bool) -> None:
    wire = server.wire()
    if not is_first:
        wire.send(post("/embed", {"inputs": "a"}))
        assert wire.answer().status == 200
    beginning, piece = UNENDING[name]
    with server.counts_one(408):
        wire.send(beginning)
        drip(wire, piece)
        answer = wire.answer()
        assert (answer.status, answer.get("connection")) == (408, "close"), answer
    assert wire.ending().data == b""


@pytest.mark.parametrize("piece", [b"", b"\r\n"], ids=["silent", "empty lines"])
@pytest.mark.parametrize("beginning", [b"", post("/embed", {"inputs": "a"})], ids=["new", "kept"])
def test_a_connection_without_a_request_is_closed(server: Target, beginning: bytes, piece: bytes) -> None:
    wire = server.wire()
    wire.send(beginning)
    if beginning:
        assert wire.answer().status == 200
    if piece:
        drip(wire, piece)
    data = wire.ending().data
    assert data == b"" or data.startswith(b"HTTP/1.1 408 "), data


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_client_that_stops_reading_is_let_go(server: Target, connection: str) -> None:
    wire = server.wire(SMALL_BUFFER)
    wire.send(post("/embed", LARGE, f"connection: {connection}"))
    wait_for(wire.is_readable, bool, "the answer has begun")
    wait_for(lambda: server.holds(wire), lambda holds: not holds, "the server's end is open")
    assert len(wire.ending().data) < INPUTS * 1_000, "the answer was read whole after all"


def test_a_client_that_sends_ahead_and_never_reads_is_let_go(server: Target) -> None:
    """The answers of requests that are sent ahead do not pile up in the server."""
    ahead = 200
    wire = server.wire(SMALL_BUFFER)
    with server.growth() as growth:
        sending = threading.Thread(target=wire.send_or_be_cut, args=(post("/embed", LARGE) * ahead,))
        sending.start()
        wait_for(wire.is_readable, bool, "the first answer has begun")
        wait_for(lambda: server.holds(wire), lambda holds: not holds, "the server's end is open")
        sending.join()
    assert growth.most < 200 * 2**20


def test_a_client_that_reads_slowly_and_steadily_gets_all(server: Target) -> None:
    wire = server.wire(SMALL_BUFFER)
    wire.send(post("/embed", LARGE))
    assert wire.is_readable(60)
    begun = time.monotonic()
    head, length, read = bytearray(), -1, bytearray()
    while not head or len(read) < length:
        data = wire.socket.recv(READ_BYTES)
        assert data, f"the end after {len(read)} of {length} bytes and {time.monotonic() - begun:.1f} s"
        read += data
        if not head and b"\r\n\r\n" in read:
            head, _, read = read.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        time.sleep(len(data) / READ_BYTES * READ_PACE_SECONDS)
    took = time.monotonic() - begun
    assert head.startswith(b"HTTP/1.1 200"), head
    assert len(json.loads(read)) == INPUTS
    assert took > 2 * SECONDS, "the client was too fast to prove anything"


def test_silent_connections_get_their_first_answer_after_sigterm(model: Path) -> None:
    settings = {"server": {"endpoint_drain_seconds": 0.0}}
    with target(model, model.parent / "stopping", settings) as server:
        wires = [server.wire() for _ in range(20)]
        wait_for(lambda: [server.holds(wire) for wire in wires], all, "connections have been accepted")
        server.live.stop(signal.SIGTERM)
        server.wait_for_line("stopping")
        answers: list[Answer] = []
        for number, wire in enumerate(wires):
            wire.send(post("/embed", {"inputs": f"text {number}"}))
        for wire in wires:
            answers.append(wire.answer())
            assert wire.ending().data == b""
        assert [(one.status, one.get("connection")) for one in answers] == [(200, "close")] * 20
        assert server.exit_code() == 0
        assert not server.new_bugs()
