"""Compressed bodies of requests, over real sockets against a real process."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator

import pytest

from tests.runtime.serve.wire import Target, chunked, request, target
from tests.support.models import small_minilm

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
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("encodings")
    with target(
        small_minilm(folder / "model"), folder, {"server": {"max_body_bytes": MAX_BODY_BYTES}}
    ) as started:
        yield started


@pytest.fixture
def server(running: Target) -> Iterator[Target]:
    yield running
    running.close_wires()
    running.check_good()


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
def test_a_packed_body_is_as_good_as_the_plain_one(server: Target, encoding: str, framing: str) -> None:
    plain = server.ask(request("POST", "/embed", JSON, body=BODY))
    packed, coding = PACKED[encoding], f"content-encoding: {encoding}"
    if framing == "chunked":
        sent = request("POST", "/embed", JSON, coding, "transfer-encoding: chunked", body=chunked(packed, 7))
    else:
        sent = request("POST", "/embed", JSON, coding, body=packed)
    wire = server.wire()
    for _ in range(2):  # the connection goes on
        wire.send(sent)
        answer = wire.answer()
        assert (answer.status, answer.body) == (200, plain.body), answer


def test_gzip_of_several_members_is_their_texts_one_after_the_other(server: Target) -> None:
    """As RFC 1952 says."""
    packed = gzip.compress(BODY[:10]) + gzip.compress(BODY[10:])
    answer = server.ask(request("POST", "/embed", JSON, "content-encoding: gzip", body=packed))
    assert (answer.status, len(answer.json())) == (200, 2), answer


@pytest.mark.thorough
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_what_unpacks_beyond_the_limit_is_413_before_it_is_unpacked(server: Target, encoding: str) -> None:
    bomb = gzip_bomb() if encoding == "gzip" else zstd_bomb()
    assert len(bomb) < MAX_BODY_BYTES
    server.check_good()
    with server.growth() as growth, server.counts_one(413, "/embed"):
        answer = server.ask(request("POST", "/embed", JSON, f"content-encoding: {encoding}", body=bomb))
        assert answer.status == 413, answer
    assert growth.most < BOMB // 10, f"{growth.most:,} bytes more for {len(bomb):,} bytes"


def test_a_packed_body_beyond_the_limit_is_413(server: Target) -> None:
    packed = b"\x1f\x8b" + b"a" * MAX_BODY_BYTES
    answer = server.ask(request("POST", "/embed", JSON, "content-encoding: gzip", body=packed))
    assert answer.status == 413, answer


MANY = {
    "gzip of many members": ("gzip", gzip.compress(b"") * 20 + PACKED["gzip"]),
    "zstd of many frames": ("zstd", bytes.fromhex("28b52ffd2000010000") * 100_000),
    "zstd of many frames to skip": ("zstd", bytes.fromhex("502a4d1800000000") * 100_000),
}


@pytest.mark.parametrize("name", [*MANY])
def test_a_body_packed_in_many_pieces_is_refused_before_they_are_all_looked_at(
    server: Target, name: str
) -> None:
    """Each costs a copy of what follows: 200,000 empty ones stopped the event loop for 49 seconds."""
    encoding, packed = MANY[name]
    answer = server.ask(request("POST", "/embed", JSON, f"content-encoding: {encoding}", body=packed))
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
def test_a_broken_body_is_400(server: Target, name: str) -> None:
    encoding, packed = BROKEN[name]
    answer = server.ask(request("POST", "/embed", JSON, f"content-encoding: {encoding}", body=packed))
    assert answer.status == 400, answer
    assert "error" in answer.json()


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "gzip, br", "nonsense"])
def test_another_encoding_is_415_that_names_it(server: Target, encoding: str) -> None:
    wire = server.wire()
    head = ("expect: 100-continue", "content-length: 1000000")
    wire.send(request("POST", "/embed", JSON, f"content-encoding: {encoding}", *head))
    answer = wire.answer()  # and no 100 before it: the body is of no use
    assert answer.status == 415, answer
    assert encoding.rsplit(", ", maxsplit=1)[-1] in answer.json()["error"]
