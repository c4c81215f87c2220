"""Request targets and HEAD, over real sockets against a real process (RFC 9112, section 3.2)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_connection import HttpConnection, build_request
from tests.support.models import small_minilm
from tests.support.monitored_server import MonitoredServer, start_monitored_server

TEXT = json.dumps({"inputs": "some text"}).encode()
JSON = "content-type: application/json"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredServer]:
    folder: Path = tmp_path_factory.mktemp("targets")
    with start_monitored_server(small_minilm(folder / "model"), folder / "server", {}) as started:
        yield started


@pytest.fixture
def server(running: MonitoredServer) -> Iterator[MonitoredServer]:
    """A server, which must be as good after a test as before it."""
    yield running
    running.close_connections()
    running.assert_is_sound()


TARGETS = {
    "http://other.example/embed": 200,
    "http://other.example:8080/embed?a=b": 200,
    "http://user:password@other.example/embed": 200,
    "https://[::1]/embed": 200,
    "http://other.example": 200,
    "http://other.example?a=b": 200,
    "http://other.example/other": 404,
    "http:///embed": 400,
    "/%65mbed": 200,
    "/embed?": 200,
    "/embed?x=1&y=%0d%0a": 200,
    "/embed%0d%0ax-injected:%201": 404,
    "/embed%00": 404,
    "//embed": 404,
    "/embed/../embed": 404,
    "/%ff%fe": 404,
}


@pytest.mark.parametrize("path", [*TARGETS])
def test_a_target_means_what_it_says(server: MonitoredServer, path: str) -> None:
    connection = server.connect()
    connection.send(build_request("POST", path, JSON, body=TEXT))
    answer = connection.read_answer()
    assert answer.status == TARGETS[path], answer
    assert answer.get("x-injected") is None
    if answer.status == 400:
        assert connection.read_to_end().how == "closed"
    else:
        assert not connection.is_readable(), connection.read_to_end()


@pytest.mark.parametrize("target", ["/info", "http://other.example/info"])
def test_a_target_in_absolute_form_is_counted_under_its_path(server: MonitoredServer, target: str) -> None:
    with server.assert_counts_one(200, "/info"):
        assert server.send_request(build_request("GET", target)).status == 200


@pytest.mark.parametrize("path", ["/info", "/health"])
def test_head_has_the_head_of_get_and_no_body(server: MonitoredServer, path: str) -> None:
    connection = server.connect()
    connection.send(build_request("GET", path))
    got = connection.read_answer()
    connection.send(build_request("HEAD", path) + build_request("GET", path))
    head, after = connection.read_answer("HEAD"), connection.read_answer()
    assert (head.status, head.get("content-length")) == (200, str(len(got.body))), head
    assert (after.status, after.body) == (200, got.body)


def test_head_of_a_route_for_post_is_405_that_names_post(server: MonitoredServer) -> None:
    connection = server.connect()
    answer = read_head(connection, "/embed")
    assert answer == (405, "POST")
    assert read_head(connection, "/embed") == answer, "the connection goes on"


def read_head(connection: HttpConnection, path: str) -> tuple[int, str | None]:
    connection.send(build_request("HEAD", path))
    answer = connection.read_answer("HEAD")
    return answer.status, answer.get("allow")
