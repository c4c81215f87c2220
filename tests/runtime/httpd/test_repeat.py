"""Heads that come again: what is taken without the parser is what the parser would have made of it."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedserve_runtime.httpd.repeat import MOST_HEAD_BYTES, Repeatable

HEAD = b"POST /embed HTTP/1.1\r\nhost: a\r\nContent-Length: %d\r\nx-a: b\r\n\r\n"
HEADERS = [(b"host", b"a"), (b"content-length", b"3"), (b"x-a", b"b")]


def request(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + body


def learnt() -> Repeatable:
    head = Repeatable.of(request(b"abc"), HEADERS, 3)
    assert head is not None
    return head


def test_the_headers_are_kept_but_for_the_length() -> None:
    assert learnt().headers == {b"host": b"a", b"x-a": b"b"}


@pytest.mark.parametrize("body", [b"abc", b"", b"x" * 100_000, b"\r\n\r\n"])
def test_a_body_of_any_length_is_found_behind_the_same_head(body: bytes) -> None:
    assert learnt().body_in(request(body)) == body


OTHERS = {
    "a body that is not there yet": request(b"abc")[:-1],
    "a second request behind the first": request(b"abc") + request(b"de"),
    "another header": request(b"abc", HEAD.replace(b"x-a: b", b"x-a: c")),
    "another path": request(b"abc", HEAD.replace(b"/embed", b"/other")),
    "a length that is no number": HEAD.replace(b"%d", b"+3") + b"abc",
    "no length": HEAD.replace(b"%d", b"") + b"abc",
    "a length of many digits": HEAD.replace(b"%d", b"00000003") + b"abc",
    "a length in two lines": request(b"abc", HEAD.replace(b"x-a", b"content-length: 1\r\nx-a")),
    "nothing": b"",
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_anything_else_is_left_to_the_parser(data: bytes) -> None:
    assert learnt().body_in(data) is None


UNFIT = {
    "a body in chunks": (
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
        [(b"transfer-encoding", b"chunked")],
    ),
    "no body": (b"POST / HTTP/1.1\r\nhost: a\r\n\r\n", [(b"host", b"a")]),
    "a header that comes twice": (
        b"POST / HTTP/1.1\r\ncontent-length: 0\r\nx: a\r\nx: b\r\n\r\n",
        [(b"content-length", b"0"), (b"x", b"a"), (b"x", b"b")],
    ),
    "a long head": (
        b"POST / HTTP/1.1\r\ncontent-length: 0\r\nx: %b\r\n\r\n" % (b"y" * MOST_HEAD_BYTES),
        [(b"content-length", b"0"), (b"x", b"y" * MOST_HEAD_BYTES)],
    ),
}


@pytest.mark.parametrize(("data", "headers"), UNFIT.values(), ids=UNFIT)
def test_heads_that_are_parsed_each_time(data: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    assert Repeatable.of(data, headers, 0) is None


class Parsed:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ends = 0

    def on_body(self, data: bytes) -> None:
        self.bodies.append(data)

    def on_message_complete(self) -> None:
        self.ends += 1


@given(
    at=st.integers(0, 70),
    new=st.sampled_from((b"", b"0", b"1", b"\r", b"\n", b":", b" ", b"a")),
    length=st.integers(0, 3),
)
@settings(max_examples=150)
def test_what_is_taken_is_what_the_parser_makes_of_it(at: int, new: bytes, length: int) -> None:
    data = request(b"abc")
    changed = data[:at] + new + data[at + length :]
    body = learnt().body_in(changed)
    if body is not None:
        parsed = Parsed()
        httptools.HttpRequestParser(parsed).feed_data(changed)
        assert (parsed.ends, b"".join(parsed.bodies)) == (1, body)
