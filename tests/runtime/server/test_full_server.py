"""A server that has as many connections as it may have, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.http_connection import build_post, build_request, wait_for
from tests.support.models import small_minilm
from tests.support.monitored_server import MonitoredServer, start_monitored_server

MAX_CONNECTIONS = 8
BEFORE = f"""
from embedserve_runtime.server import limits
limits.MAX_CONNECTIONS = {MAX_CONNECTIONS}
"""
QUESTION = build_post("/embed", {"inputs": "a"})
HALF_A_REQUEST = build_request("POST", "/embed", "content-type: application/json", "content-length: 50")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredServer]:
    folder = tmp_path_factory.mktemp("full")
    with start_monitored_server(small_minilm(folder / "model"), folder / "served", before=BEFORE) as started:
        yield started


@pytest.fixture
def server(running: MonitoredServer) -> Iterator[MonitoredServer]:
    yield running
    running.assert_is_sound()
    running.close_connections()
    # The one that asks for the metrics is counted too.
    wait_for(lambda: running.read_metric("embedserve_connections"), lambda count: count <= 1, "connections")


@pytest.mark.parametrize(
    "sent_bytes", [b"", b"P", b"GET /info HTTP/1.1\r\nhost: a\r\n"], ids=["nothing", "a byte", "half a head"]
)
def test_a_new_client_takes_the_place_of_the_oldest_connection_without_a_request(
    server: MonitoredServer, sent_bytes: bytes
) -> None:
    served, *silent = [server.connect() for _ in range(MAX_CONNECTIONS)]
    served.send(QUESTION)
    assert served.read_answer().status == 200
    for connection in silent:
        connection.send(sent_bytes)
    for oldest in silent:
        new = server.connect()
        new.send(QUESTION)
        assert new.read_answer().status == 200
        assert oldest.read_to_end().how == "closed"
    served.send(QUESTION)
    assert served.read_answer().status == 200, "one that has had a request makes room last"


def test_where_all_have_had_requests_the_one_that_has_been_idle_longest_makes_room(
    server: MonitoredServer,
) -> None:
    connections = [server.connect() for _ in range(MAX_CONNECTIONS)]
    for connection in [*connections, connections[0]]:
        connection.send(QUESTION)
        assert connection.read_answer().status == 200
    new = server.connect()
    new.send(QUESTION)
    assert new.read_answer().status == 200
    assert connections[1].read_to_end().how == "closed"
    connections[0].send(QUESTION)
    assert connections[0].read_answer().status == 200


def test_a_new_client_is_refused_where_every_connection_has_a_request(server: MonitoredServer) -> None:
    busy = [server.connect() for _ in range(MAX_CONNECTIONS)]
    for connection in busy:
        connection.send(HALF_A_REQUEST)
    wait_for(
        lambda: server.read_metric("embedserve_requests_in_flight"),
        lambda count: count == MAX_CONNECTIONS,
        "requests in flight",
    )
    refused = server.connect()
    answer = refused.read_answer()
    assert (answer.status, answer.body) == (503, b"This server has no connection left; try again.\n")
    assert refused.read_to_end().how == "closed"
    for connection in busy:
        connection.send(b'{"inputs": "a"}'.ljust(50))
        assert connection.read_answer().status == 200
