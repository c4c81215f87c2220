"""Clients that mean harm, over real sockets against a real process: it stays small, and answers others."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from tests.support.http_connection import build_post, wait_for
from tests.support.http_connection import build_request as request_of
from tests.support.models import small_minilm
from tests.support.monitored_server import MonitoredServer, start_monitored_server

MIB = 2**20
MAX_BODY_BYTES = MIB
FLOOD = 16 * MIB
GROWTH = 20 * MIB
IDLE = 2_000
IDLE_BYTES = 32_768
"""The bytes of one connection that says nothing: far above what it takes, far below what a buffer for each would."""
LONG = {"inputs": ["a " * 250] * 1_800}
"""Some 450,000 tokens, several seconds of work; the queue takes twice as much, not three times."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_minilm(tmp_path_factory.mktemp("hostile") / "model")


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[MonitoredServer]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server's too, which is its child
    try:
        with start_monitored_server(
            model, model.parent / "hostile", {"server": {"max_body_bytes": MAX_BODY_BYTES}}
        ) as started:
            yield started
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def server(running: MonitoredServer) -> Iterator[MonitoredServer]:
    yield running
    running.close_connections()
    running.assert_is_sound()


CHUNKED = request_of("POST", "/embed", "content-type: application/json", "transfer-encoding: chunked")
UNENDING = {
    "trailers": (CHUNKED + b"0\r\n", b"a:\r\n"),
    "a trailer's name": (CHUNKED + b"0\r\n", b"a"),
    "a trailer's value": (CHUNKED + b"0\r\na: ", b"a"),
    "a chunk extension": (CHUNKED + b"1;", b"a"),
    "chunk extensions": (CHUNKED + b"1;", b"a=b;"),
    "chunks of one byte with extensions": (CHUNKED, b"1;" + b"a" * 4_000 + b"\r\n \r\n"),
    "a chunk size": (CHUNKED, b"0"),
    "a head": (b"GET /info HTTP/1.1\r\nhost: a\r\n", b"a:\r\n"),
    "a line": (b"", b"G"),
    "empty lines": (b"", b"\r\n"),
}


@pytest.mark.parametrize("name", [*UNENDING])
def test_what_has_no_end_is_cut_off_and_takes_no_memory(server: MonitoredServer, name: str) -> None:
    beginning, piece = UNENDING[name]
    connection = server.connect()
    server.assert_is_sound()
    with server.measure_growth() as growth:
        connection.send(beginning)
        sent_bytes = connection.send_until_answered(piece, FLOOD)
        ending = connection.read_to_end()
    assert ending.data[9:12] in {b"", b"400", b"408", b"413", b"431"}, ending
    assert ending.data.count(b"HTTP/1.1 ") <= 1, ending
    assert growth.max_bytes < GROWTH, f"{growth.max_bytes:,} bytes more, after {sent_bytes:,} were sent"


def test_many_heads_of_small_headers_take_no_memory(server: MonitoredServer) -> None:
    """Their objects were many times as large as their bytes, and stayed until the client had read its answer."""
    head = b"GET /info HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 10_000
    server.assert_is_sound()
    with server.measure_growth() as growth:
        connections = [server.connect() for _ in range(100)]
        for connection in connections:
            connection.send_until_cut(head)
        assert {connection.read_answer().status for connection in connections} == {431}
    assert growth.max_bytes < GROWTH, f"{growth.max_bytes:,} bytes more"


BEGINNINGS = (
    b"",
    b"POST /embed HTTP/1.1\r\n",
    b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: 50\r\n\r\n",
    CHUNKED,
    b"GET /info HTTP/1.1\r\nhost: a\r\n",
    b"GET /",
)


def test_random_bytes_end_nothing_but_their_connection(server: MonitoredServer) -> None:
    chance = random.Random(0)
    for number in range(300):
        connection = server.connect()
        # What is sent, or its end, may meet a connection that the server has ended already.
        with contextlib.suppress(OSError):
            connection.send(
                chance.choice(BEGINNINGS) + chance.randbytes(chance.choice((1, 30, 1_000, 70_000)))
            )
            if number % 3:
                connection.socket.shutdown(socket.SHUT_WR)
                connection.read_to_end()
            else:  # a reset
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    server.assert_is_sound()
    in_flight = "embedserve_requests_in_flight"
    wait_for(lambda: server.read_metric(in_flight), lambda value: value == 0, in_flight)


@pytest.mark.thorough
def test_thousands_of_idle_connections_cost_little_and_others_are_answered(server: MonitoredServer) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * IDLE:
        pytest.skip("this user may not open so many files")
    server.assert_is_sound()
    with server.measure_growth() as growth:
        connections = [server.connect() for _ in range(IDLE)]
        wait_for(lambda: server.has_open(connections[-1]), bool, "the last one has been accepted")
        for _ in range(20):
            server.assert_is_sound()
    assert all(map(server.has_open, connections[:: IDLE // 10])), "they are within their time"
    assert growth.max_bytes < IDLE * IDLE_BYTES, f"{growth.max_bytes / IDLE:,.0f} bytes each"
    connections[0].send(build_post("/embed", {"inputs": "a"}))
    assert connections[0].read_answer().status == 200


@pytest.mark.parametrize("clients", [0, 1], ids=["that runs", "that waits behind another"])
def test_work_whose_client_has_gone_is_withdrawn(server: MonitoredServer, clients: int) -> None:
    inputs, depth, finished = len(LONG["inputs"]), "embedserve_queue_depth", "embedserve_batch_inputs_sum"
    before = server.read_metric(finished)
    ahead = [server.connect() for _ in range(clients)]
    for connection in ahead:
        connection.send(build_post("/embed", LONG))
    leaving = server.connect()
    leaving.send(build_post("/embed", LONG))
    wait_for(
        lambda: server.read_metric(depth), lambda value: value > clients * inputs, "all of the work waits"
    )
    wait_for(lambda: server.read_metric(finished), lambda value: value > before, "it runs")
    with server.assert_counts_one(499, "/embed"):
        leaving.close()
    wait_for(
        lambda: server.read_metric(depth),
        lambda value: value <= clients * inputs,
        "only the others' work waits",
    )
    for connection in ahead:
        with server.assert_counts_one(499, "/embed"):
            connection.close()
    wait_for(lambda: server.read_metric(depth), lambda value: value == 0, "nothing waits")
    assert server.read_metric(finished) - before < (1 + clients) * inputs


# -- messages of many small parts

QUIET = 20
# So many requests on a quiet server, one after the other, are a wait that nobody notices.
MAX_QUIET_REQUESTS = 200


@pytest.fixture(scope="module")
def ranking(model: Path) -> Iterator[MonitoredServer]:
    """Start a server with the limit of bodies that it has without any settings."""
    folder = small_minilm(model.parent / "reranker")
    for name in ("modules.json", "model.safetensors"):
        (folder / name).unlink()
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=36, num_hidden_layers=1, num_attention_heads=3, intermediate_size=50, num_labels=1
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    with start_monitored_server(folder, model.parent / "ranking") as started:
        yield started


@pytest.fixture(scope="module")
def embedding(model: Path) -> Iterator[MonitoredServer]:
    with start_monitored_server(model, model.parent / "embedding") as started:
        yield started


GOOD = {
    "ranking": build_post("/rerank", {"query": "a", "texts": ["b"]}),
    "embedding": build_post("/embed", {"inputs": "a"}),
}
MANY = {
    "texts to rank": ("ranking", "/rerank", b'{"query":"a","texts":[%b""]}' % (b'"",' * 4_999_999)),
    "instances": (
        "embedding",
        "/vertex",
        b'{"instances":[%b{"inputs":"a"}]}' % (b'{"inputs":"a"},' * 99_999),
    ),
    "texts to embed": ("embedding", "/embed", b'{"inputs":[%b"a"]}' % (b'"a",' * 3_999_999)),
    "ids to embed": ("embedding", "/embed", b'{"inputs":[%b[1]]}' % (b"[1]," * 3_999_999)),
    "few enough values in too many arrays": (
        "embedding",
        "/embed",
        b'{"inputs":[%b[1]]}' % (b"[1]," * 449_999),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*MANY])
def test_others_are_answered_while_millions_of_parts_are_refused(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Refusing millions of parts takes its time, and none of the others that ask meanwhile waits for most of it."""
    kind, path, body = MANY[name]
    server: MonitoredServer = request.getfixturevalue(kind)
    is_sent, over = threading.Event(), threading.Event()
    waits, statuses = list[float](), list[int]()
    begun = time.monotonic()
    for _ in range(QUIET):
        assert server.send_request(GOOD[kind]).status == 200
    quiet = (time.monotonic() - begun) / QUIET

    def ask_on() -> None:
        is_sent.wait()
        while not (waits and over.is_set()):
            begun = time.monotonic()
            statuses.append(server.send_request(GOOD[kind]).status)
            waits.append(time.monotonic() - begun)

    asking = threading.Thread(target=ask_on)
    asking.start()
    try:
        connection = server.connect()
        connection.send(request_of("POST", path, "content-type: application/json", body=body))
        whole = time.monotonic()
        is_sent.set()
        answer = connection.read_answer()
        answered_at = time.monotonic()
    finally:
        is_sent.set()
        over.set()
        asking.join()
    assert answer.status == 422, answer
    assert set(statuses) == {200}, statuses
    assert server.send_request(GOOD[kind]).status == 200
    assert not server.list_new_errors()
    took, longest = answered_at - whole, max(waits)
    probe_answer = (
        f"refused in {took:.3f} s; {len(waits)} others, the longest {longest:.3f} s; quiet {quiet:.4f} s each"
    )
    assert longest < max(took / 2, MAX_QUIET_REQUESTS * quiet), probe_answer
