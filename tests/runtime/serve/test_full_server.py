"""A server that has as many connections as it may have, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.serve.wire import Target, post, request, target, wait_for
from tests.support.models import small_minilm

MAX_CONNECTIONS = 8
BEFORE = f"""
from embedserve_runtime.server import limits
limits.MAX_CONNECTIONS = {MAX_CONNECTIONS}
"""
QUESTION = post("/embed", {"inputs": "a"})
HALF_A_REQUEST = request("POST", "/embed", "content-type: application/json", "content-length: 50")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("full")
    with target(small_minilm(folder / "model"), folder / "served", before=BEFORE) as started:
        yield started


@pytest.fixture
def server(running: Target) -> Iterator[Target]:
    yield running
    running.check_good()
    running.close_wires()
    # The one that asks for the metrics is counted too.
    wait_for(lambda: running.metric("embedserve_connections"), lambda count: count <= 1, "connections")


@pytest.mark.parametrize(
    "sent", [b"", b"P", b"GET /info HTTP/1.1\r\nhost: a\r\n"], ids=["nothing", "a byte", "half a head"]
)
def test_a_new_client_takes_the_place_of_the_oldest_connection_without_a_request(
    server: Target, sent: bytes
) -> None:
    asked, *silent = [server.wire() for _ in range(MAX_CONNECTIONS)]
    asked.send(QUESTION)
    assert asked.answer().status == 200
    for wire in silent:
        wire.send(sent)
    for oldest in silent:
        new = server.wire()
        new.send(QUESTION)
        assert new.answer().status == 200
        assert oldest.ending().how == "closed"
    asked.send(QUESTION)
    assert asked.answer().status == 200, "one that has had a request makes room last"


def test_where_all_have_had_requests_the_one_that_has_been_idle_longest_makes_room(server: Target) -> None:
    wires = [server.wire() for _ in range(MAX_CONNECTIONS)]
    for wire in [*wires, wires[0]]:
        wire.send(QUESTION)
        assert wire.answer().status == 200
    new = server.wire()
    new.send(QUESTION)
    assert new.answer().status == 200
    assert wires[1].ending().how == "closed"
    wires[0].send(QUESTION)
    assert wires[0].answer().status == 200


def test_a_new_client_is_refused_where_every_connection_has_a_request(server: Target) -> None:
    busy = [server.wire() for _ in range(MAX_CONNECTIONS)]
    for wire in busy:
        wire.send(HALF_A_REQUEST)
    wait_for(
        lambda: server.metric("embedserve_requests_in_flight"),
        lambda count: count == MAX_CONNECTIONS,
        "requests in flight",
    )
    refused = server.wire()
    answer = refused.answer()
    assert (answer.status, answer.body) == (503, b"This server has no connection left; try again.\n")
    assert refused.ending().how == "closed"
    for wire in busy:
        wire.send(b'{"inputs": "a"}'.ljust(50))
        assert wire.answer().status == 200
