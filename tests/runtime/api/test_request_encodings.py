"""Compressed bodies of requests, over real sockets against a real process."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator

import pytest

from tests.support.http_connection import build_request, encode_chunked
from tests.support.models import small_minilm
from tests.support.monitored_server import MonitoredServer, start_monitored_server

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIB = 2**20
MAX_BODY_BYTES = MIB
BOMB = 256 * MIB
BODY = json.dumps({"inputs": ["some text", "and another"]}).encode()
JSON = "content-type: application/json"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredServer]:
    folder = tmp_path_factory.mktemp("encodings")
    with start_monitored_server(
        small_minilm(folder / "model"), folder, {"server": {"max_body_bytes": MAX_BODY_BYTES}}
    ) as started:
        yield started


@pytest.fixture
def server(running: MonitoredServer) -> Iterator[MonitoredServer]:
    yield running
    running.close_connections()
    running.assert_is_sound()


def gzip_bomb() -> bytes:
    """A JSON text of 256 MB, from 256 KB."""
    packer = zlib.compressobj(9, wbits=31)
    blanks = b" " * MIB
    return b"".join([*(packer.compress(blanks) for _ in range(BOMB // MIB)), packer.flush()])


def zstd_bomb() -> bytes:
    packer = zstd.ZstdCompressor()
    blanks = b" " * MIB
    return b"".join([*(packer.compress(blanks) for _ in range(BOMB // MIB)), packer.flush()])


PACKED = {
    "gzip": gzip.compress(BODY),
    "x-gzip": gzip.compress(BODY),
    "GZip": gzip.compress(BODY),
    "zstd": zstd.compress(BODY),
    "identity": BODY,
}


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
@pytest.mark.parametrize("encoding", [*PACKED])
def test_a_packed_body_is_as_good_as_the_plain_one(
    server: MonitoredServer, encoding: str, framing: str
) -> None:
    plain = server.send_request(build_request("POST", "/embed", JSON, body=BODY))
    packed, coding = PACKED[encoding], f"content-encoding: {encoding}"
    if framing == "chunked":
        request = build_request(
            "POST", "/embed", JSON, coding, "transfer-encoding: chunked", body=encode_chunked(packed, 7)
        )
    else:
        request = build_request("POST", "/embed", JSON, coding, body=packed)
    connection = server.connect()
    for _ in range(2):  # the connection goes on
        connection.send(request)
        answer = connection.read_answer()
        assert (answer.status, answer.body) == (200, plain.body), answer


def test_gzip_of_several_members_is_their_texts_one_after_the_other(server: MonitoredServer) -> None:
    """RFC 1952 allows several members."""
    packed = gzip.compress(BODY[:10]) + gzip.compress(BODY[10:])
    answer = server.send_request(build_request("POST", "/embed", JSON, "content-encoding: gzip", body=packed))
    assert (answer.status, len(answer.json())) == (200, 2), answer


@pytest.mark.thorough
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_what_unpacks_beyond_the_limit_is_413_before_it_is_unpacked(
    server: MonitoredServer, encoding: str
) -> None:
    bomb = gzip_bomb() if encoding == "gzip" else zstd_bomb()
    assert len(bomb) < MAX_BODY_BYTES
    server.assert_is_sound()
    with server.measure_growth() as growth, server.assert_counts_one(413, "/embed"):
        answer = server.send_request(
            build_request("POST", "/embed", JSON, f"content-encoding: {encoding}", body=bomb)
        )
        assert answer.status == 413, answer
    assert growth.max_bytes < BOMB // 10, f"{growth.max_bytes:,} bytes more for {len(bomb):,} bytes"


def test_a_packed_body_beyond_the_limit_is_413(server: MonitoredServer) -> None:
    packed = b"\x1f\x8b" + b"a" * MAX_BODY_BYTES
    answer = server.send_request(build_request("POST", "/embed", JSON, "content-encoding: gzip", body=packed))
    assert answer.status == 413, answer


MANY = {
    "gzip of many members": ("gzip", gzip.compress(b"") * 20 + PACKED["gzip"]),
    "zstd of many frames": ("zstd", bytes.fromhex("28b52ffd2000010000") * 100_000),
    "zstd of many frames to skip": ("zstd", bytes.fromhex("502a4d1800000000") * 100_000),
}


@pytest.mark.parametrize("name", [*MANY])
def test_a_body_packed_in_many_pieces_is_refused_before_they_are_all_looked_at(
    server: MonitoredServer, name: str
) -> None:
    """Each costs a copy of what follows: 200,000 empty ones stopped the event loop for 49 seconds."""
    encoding, packed = MANY[name]
    answer = server.send_request(
        build_request("POST", "/embed", JSON, f"content-encoding: {encoding}", body=packed)
    )
    assert answer.status == 400, answer
    assert "more than 16" in answer.json()["error"]


BROKEN = {
    "gzip that is none": ("gzip", BODY),
    "gzip without its end": ("gzip", PACKED["gzip"][:-6]),
    "gzip with a wrong sum": ("gzip", PACKED["gzip"][:-8] + b"\x00" * 4 + PACKED["gzip"][-4:]),
    "gzip with a changed byte": ("gzip", PACKED["gzip"][:14] + b"\xff\xff" + PACKED["gzip"][16:]),
    "gzip and something else": ("gzip", PACKED["gzip"] + b"more"),
    "gzip of nothing": ("gzip", b""),
    "zstd that is none": ("zstd", BODY),
    "zstd without its end": ("zstd", PACKED["zstd"][:-3]),
    "zstd and something else": ("zstd", PACKED["zstd"] + b"more"),
}


@pytest.mark.parametrize("name", [*BROKEN])
def test_a_broken_body_is_400(server: MonitoredServer, name: str) -> None:
    encoding, packed = BROKEN[name]
    answer = server.send_request(
        build_request("POST", "/embed", JSON, f"content-encoding: {encoding}", body=packed)
    )
    assert answer.status == 400, answer
    assert "error" in answer.json()


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "gzip, br", "nonsense"])
def test_another_encoding_is_415_that_names_it(server: MonitoredServer, encoding: str) -> None:
    connection = server.connect()
    head = ("expect: 100-continue", "content-length: 1000000")
    connection.send(build_request("POST", "/embed", JSON, f"content-encoding: {encoding}", *head))
    answer = connection.read_answer()  # and no 100 before it: the body is of no use
    assert answer.status == 415, answer
    assert encoding.rsplit(", ", maxsplit=1)[-1] in answer.json()["error"]
