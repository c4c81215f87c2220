"""The rules of HTTP/1.1 for requests, over real sockets against a real process: framing, heads, connections."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.support.http_connection import build_post, build_request, encode_chunked
from tests.support.models import small_minilm
from tests.support.monitored_server import MonitoredServer, start_monitored_server
from tests.support.tolerances import FP32_MAX_ABS_DIFF

MAX_BODY = 2**20
KEY = "correct-horse"
TEXT = json.dumps({"inputs": "some text"}).encode()
JSON = "content-type: application/json"
CHUNKED = "transfer-encoding: chunked"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_minilm(tmp_path_factory.mktemp("protocol") / "model")


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[MonitoredServer]:
    with start_monitored_server(
        model, model.parent / "open", {"server": {"max_body_bytes": MAX_BODY}}
    ) as started:
        yield started


@pytest.fixture
def server(running: MonitoredServer) -> Iterator[MonitoredServer]:
    """A server, which must be as good after a test as before it."""
    yield running
    running.close_connections()
    running.assert_is_sound()


@pytest.fixture(scope="module")
def guarded(model: Path) -> Iterator[MonitoredServer]:
    with start_monitored_server(model, model.parent / "guarded", {"server": {"api_keys": [KEY]}}) as started:
        yield started


def vectors(body: bytes) -> list[list[float]]:
    rows: list[list[float]] = json.loads(body)
    return rows


def assert_same(body: bytes, expected: bytes) -> None:
    np.testing.assert_allclose(vectors(body), vectors(expected), rtol=0, atol=FP32_MAX_ABS_DIFF)


# -- bodies


@pytest.mark.parametrize("size", [8_192, 65_536])
def test_a_body_of_960_kb_in_chunks_is_taken(server: MonitoredServer, size: int) -> None:
    body = b'{"inputs": "%b"}' % (b"word " * 196_600)
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
    connection.request("POST", "/embed", iter(pieces), headers, encode_chunked=True)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert (answer.status, len(vectors(content))) == (200, 1), content[:500]


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
def test_a_client_that_sends_all_of_a_body_beyond_the_limit_can_read_the_413(
    server: MonitoredServer, framing: str
) -> None:
    body = b'{"inputs": "%b"}' % (b"a" * (2 * MAX_BODY - 32))
    connection = server.connect()
    with server.assert_counts_one(413, "/embed"):
        if framing == "chunked":
            connection.send(build_request("POST", "/embed", JSON, CHUNKED, body=encode_chunked(body)))
        else:
            connection.send(build_request("POST", "/embed", JSON, body=body))
        answer = connection.read_answer()
        assert answer.status == 413, answer
    if answer.get("connection") == "close":
        assert connection.read_to_end().how == "closed"
    else:
        connection.send(build_post("/embed", {"inputs": "next"}))
        assert connection.read_answer().status == 200


def test_a_body_that_is_announced_beyond_the_limit_gets_413_before_any_of_it_comes(
    server: MonitoredServer,
) -> None:
    connection = server.connect()
    connection.send(build_request("POST", "/embed", JSON, f"content-length: {MAX_BODY + 1}"))
    answer = connection.read_answer()
    assert (answer.status, answer.get("connection")) == (413, "close"), answer
    assert connection.read_to_end().how == "closed"


def test_a_client_without_a_key_sends_no_body_for_ever(guarded: MonitoredServer) -> None:
    """A body that comes in behind a 401 is thrown away, up to a bound that leaves the connection to clients that mean
    well."""
    connection = guarded.connect()
    connection.send(build_request("POST", "/embed", JSON, "content-length: 10000000000"))
    assert connection.read_answer().status == 401
    connection.send(b"a" * 2 * 2**20)
    assert connection.read_to_end().how == "closed"
    connection = guarded.connect()
    connection.send(build_request("POST", "/embed", JSON, body=b"a" * 2**19))
    assert connection.read_answer().status == 401
    connection.send(build_request("GET", "/health"))
    assert connection.read_answer().status == 200


def test_a_client_that_waits_for_100_gets_it_and_then_its_answer(server: MonitoredServer) -> None:
    connection = server.connect()
    head = build_request("POST", "/embed", JSON, "expect: 100-continue", f"content-length: {len(TEXT)}")
    connection.send(head)
    assert connection.read_answer().status == 100
    connection.send(TEXT)
    assert_same(
        connection.read_answer().body,
        server.send_request(build_request("POST", "/embed", JSON, body=TEXT)).body,
    )


LARGE = "content-length: 100000"
REFUSED_BY_HEAD = {
    "a body beyond the limit": (413, ("POST", "/embed", JSON, f"content-length: {MAX_BODY + 1}")),
    "a body that is no JSON": (415, ("POST", "/embed", "content-type: text/plain", LARGE)),
    "an encoding that is not read": (415, ("POST", "/embed", JSON, "content-encoding: br", LARGE)),
    "another vector space": (409, ("POST", "/tokenize", JSON, "x-embedserve-vector-space: vs2-other", LARGE)),
    "a timeout that is no number": (422, ("POST", "/v1/encode", JSON, "x-embedserve-timeout: soon", LARGE)),
    "a path that is not there": (404, ("POST", "/nowhere", JSON, LARGE)),
    "a method that the path does not have": (405, ("PUT", "/embed", JSON, LARGE)),
    "a path that takes no body": (405, ("POST", "/info", JSON, LARGE)),
    "a path of another port": (404, ("PUT", "/current", JSON, LARGE)),
}


@pytest.mark.parametrize("name", [*REFUSED_BY_HEAD])
def test_a_client_that_waits_for_100_is_refused_by_its_head_before_it_sends_a_body(
    server: MonitoredServer, name: str
) -> None:
    """The client may send the body then or not (RFC 9110, section 10.1.1), so that the connection is closed."""
    status, (method, path, *headers) = REFUSED_BY_HEAD[name]
    connection = server.connect()
    connection.send(build_request(method, path, *headers, "expect: 100-continue"))
    answer = connection.read_answer()
    assert (answer.status, answer.get("connection")) == (status, "close"), answer
    assert connection.read_to_end().how == "closed"


REPEATED = {
    "content-type": (415, "application/json", "text/plain"),
    "content-encoding": (415, "identity", "br"),
    "x-embedserve-timeout": (422, "5", "6"),
    "x-embedserve-vector-space": (409, "vs2-other", "vs2-another"),
}


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("name", [*REPEATED])
def test_a_header_that_decides_and_comes_twice_is_refused_in_either_order(
    server: MonitoredServer, name: str, is_turned: bool
) -> None:
    status, *values = REPEATED[name]
    if name == "x-embedserve-vector-space":
        right = server.send_request(build_request("POST", "/embed", JSON, body=TEXT))
        values[1] = right.get(name) or ""
    lines = [f"{name}: {value}" for value in (reversed(values) if is_turned else values)]
    more_headers = () if name == "content-type" else (JSON,)
    answer = server.send_request(build_request("POST", "/embed", *more_headers, *lines, body=TEXT))
    assert answer.status == status, answer


# -- heads

TOO_LARGE = {
    "many headers": build_request(
        "GET", "/info", *[f"x-header-{number}: {'v' * 100}" for number in range(5_000)]
    ),
    "one header": build_request("GET", "/info", f"x-header: {'v' * 600_000}"),
    "more headers than there may be": build_request("GET", "/info", *["x: y"] * 200),
    "a long target": build_request("GET", f"/info?{'q' * 600_000}"),
    "a long method": b"G" * 600_000,
    "a long name of a header": build_request("GET", "/info", f"{'n' * 600_000}: v"),
}


@pytest.mark.parametrize("head", [*TOO_LARGE])
def test_a_head_of_600_kb_is_431_and_counted(server: MonitoredServer, head: str) -> None:
    connection = server.connect()
    expected = {400, 431} if head == "a long method" else {431}
    before = {status: server.count_requests(status, "other") for status in (400, 431)}
    connection.send_until_cut(TOO_LARGE[head])
    answer = connection.read_answer()
    assert answer.status in expected, answer
    assert answer.status == 400 or b"larger than 65536 bytes" in answer.body
    assert connection.read_to_end().data == b""
    after = {status: server.count_requests(status, "other") for status in (400, 431)}
    counted = {status: after[status] - before[status] for status in after}
    assert counted == {400: 0, 431: 0} | {answer.status: 1}


NO_REQUESTS = {
    "a line that is no HTTP": b"hello there\r\n\r\n",
    "a TLS greeting": bytes.fromhex("16030100c8010000c40303") + b"\x00" * 64,
    "another protocol": b"GET / SPDY/3\r\n\r\n",
    "the beginning of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a chunk size that is none": build_request(
        "POST", "/embed", JSON, CHUNKED, body=b"zz\r\nabc\r\n0\r\n\r\n"
    ),
    "a chunk size beyond 64 bit": build_request(
        "POST", "/embed", JSON, CHUNKED, body=b"f" * 17 + b"\r\nabc\r\n"
    ),
    "a negative chunk size": build_request("POST", "/embed", JSON, CHUNKED, body=b"-1\r\nabc\r\n0\r\n\r\n"),
    "two lengths": build_request("POST", "/embed", JSON, "content-length: 3", body=TEXT),
    "a length and chunks": build_request(
        "POST", "/embed", JSON, f"content-length: {len(TEXT)}", CHUNKED, body=encode_chunked(TEXT)
    ),
    "a negative length": build_request("POST", "/embed", JSON, "content-length: -1"),
    "a length that is no number": build_request("POST", "/embed", JSON, "content-length: x"),
    "a length beyond 64 bit": build_request("POST", "/embed", JSON, f"content-length: {10**30}"),
    "a blank before a header's colon": build_request("POST", "/embed", JSON, "content-length : 3"),
    "chunks that are not last": build_request(
        "POST", "/embed", JSON, "transfer-encoding: chunked, gzip", body=encode_chunked(TEXT)
    ),
    "a coding below the chunks": build_request(
        "POST", "/embed", JSON, "transfer-encoding: gzip, chunked", body=encode_chunked(TEXT)
    ),
    "chunks twice": build_request("POST", "/embed", JSON, CHUNKED, CHUNKED, body=encode_chunked(TEXT)),
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": build_request("GET", "/health", "host: b"),
    "two keys": build_request("GET", "/info", "authorization: Bearer a", "authorization: Bearer b"),
    "no version": b"GET /health\r\n\r\n",
}


@pytest.mark.parametrize("name", [*NO_REQUESTS])
def test_what_is_no_request_is_400_and_closed_and_counted(server: MonitoredServer, name: str) -> None:
    connection = server.connect()
    with server.assert_counts_one(400):
        connection.send(NO_REQUESTS[name])
        answer = connection.read_answer()
        assert answer.status == 400, answer
        assert answer.get("connection") == "close", answer
        assert answer.body == b"This is not a well-formed HTTP request.\n"
        assert connection.read_to_end().data == b"", "something was taken for a second request"


def test_a_name_in_a_trailer_is_no_header(guarded: MonitoredServer) -> None:
    """Neither a key nor the name of the request."""
    trailer = f"authorization: Bearer {KEY}\r\nx-request-id: from-the-trailer\r\n".encode()

    def ask(*headers: str) -> tuple[int, str | None]:
        body = encode_chunked(TEXT, trailer=trailer)
        answer = guarded.send_request(
            build_request("POST", "/embed", JSON, CHUNKED, "trailer: authorization", *headers, body=body)
        )
        return answer.status, answer.get("x-request-id")

    without, name = ask()
    assert (without, name == "from-the-trailer") == (401, False)
    named, name = ask(f"authorization: Bearer {KEY}", "x-request-id: from-the-head")
    assert (named, name) == (200, "from-the-head")
    assert not guarded.list_new_errors()


# -- connections


@pytest.mark.parametrize("together", [False, True], ids=["one after the other", "in one segment"])
@pytest.mark.parametrize("framing", ["content-length", "chunked"])
def test_an_upgrade_to_h2c_is_passed_over_and_the_connection_goes_on(
    server: MonitoredServer, framing: str, together: bool
) -> None:
    bodies = [json.dumps({"inputs": text}).encode() for text in ("the first text", "another")]
    plain = [server.send_request(build_request("POST", "/embed", JSON, body=body)).body for body in bodies]
    offer = (
        "connection: Upgrade, HTTP2-Settings",
        "upgrade: h2c",
        "http2-settings: AAMAAABkAAQAAP__",
        JSON,
    )
    if framing == "chunked":
        first = build_request("POST", "/embed", *offer, CHUNKED, body=encode_chunked(bodies[0], 7))
    else:
        first = build_request("POST", "/embed", *offer, body=bodies[0])
    second = build_request("POST", "/embed", JSON, body=bodies[1])
    connection = server.connect()
    if together:
        connection.send(first + second)
        answers = connection.read_answers(2)
    else:
        connection.send(first)
        answers = [connection.read_answer()]
        connection.send(second)
        answers.append(connection.read_answer())
    assert [answer.status for answer in answers] == [200, 200], answers
    for answer, expected in zip(answers, plain, strict=True):
        assert_same(answer.body, expected)


def test_requests_sent_ahead_are_answered_in_their_order(server: MonitoredServer) -> None:
    names = [f"number-{number}" for number in range(20)]
    texts = ["a" * (1 + 37 * number % 20) for number in range(20)]
    plain = server.send_request(build_post("/embed", {"inputs": texts})).body
    connection = server.connect()
    connection.send(
        b"".join(
            build_post("/embed", {"inputs": text}, f"x-request-id: {name}")
            for text, name in zip(texts, names, strict=True)
        )
    )
    answers = connection.read_answers(20)
    assert [answer.get("x-request-id") for answer in answers] == names
    assert_same(json.dumps([vectors(answer.body)[0] for answer in answers]).encode(), plain)


@pytest.mark.parametrize("headers", [(), ("connection: keep-alive",)], ids=["alone", "keep-alive"])
def test_http_1_0_is_answered(server: MonitoredServer, headers: Sequence[str]) -> None:
    connection = server.connect()
    connection.send(
        build_request("POST", "/embed", JSON, *headers, body=TEXT).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    )
    answer = connection.read_answer()
    assert answer.status == 200, answer
    assert answer.get("transfer-encoding") is None
    if headers and answer.get("connection") == "keep-alive":
        connection.send(build_request("POST", "/embed", JSON, body=TEXT))
        assert connection.read_answer().status == 200
    else:
        assert connection.read_to_end().data == b""


def test_a_client_of_http_1_0_gets_no_100_before_its_answer(server: MonitoredServer) -> None:
    head = build_request("POST", "/embed", JSON, "expect: 100-continue", body=TEXT)
    assert server.send_request(head.replace(b"HTTP/1.1", b"HTTP/1.0", 1)).status == 200


def test_the_address_may_be_of_ipv6(model: Path) -> None:
    with start_monitored_server(model, model.parent / "six", {"server": {"host": "::1"}}) as six:
        assert ":" in six.host
        six.assert_is_sound()
        assert httpx.get(f"{six.server.management}/readyz").status_code == 200
