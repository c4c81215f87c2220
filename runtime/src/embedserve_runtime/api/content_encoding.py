"""Bodies that were packed for the way (`Content-Encoding`), unpacked within a bound."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable

from embedserve_runtime.api.errors import BodyTooLarge, MalformedBody, UnsupportedEncoding

MAX_MEMBERS = 16
"""Of one body. Each costs a decompressor and a copy of what follows it, however little is in it."""
GZIP_WINDOW = 16 + zlib.MAX_WBITS
"""zlib's word for the gzip format."""


def unpack(content: bytes, encoding: bytes, max_bytes: int) -> bytes:
    """`content` as it was before `encoding`, the value of the request's Content-Encoding.

    Raises UnsupportedEncoding as `check_encoding` does, MalformedBody for content that is not what the header says, and
    BodyTooLarge before more than `max_bytes` are unpacked.
    """
    check_encoding(encoding)
    unpack_one = _UNPACKERS.get(encoding.strip().lower())
    return content if unpack_one is None else unpack_one(content, max_bytes)


def check_encoding(encoding: bytes) -> None:
    """Raises UnsupportedEncoding for an encoding that is not read, several one after another included."""
    name = encoding.strip().lower()
    if name not in (b"", b"identity") and name not in _UNPACKERS:
        shown = encoding.decode("latin-1")
        raise UnsupportedEncoding(f"Content-Encoding {shown!r} is not read; send gzip, zstd or none")


def _unpack_gzip(content: bytes, max_bytes: int) -> bytes:
    """A gzip file may have several members, whose contents follow one another (RFC 1952, section 2.2)."""
    unpacked = bytearray()
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(GZIP_WINDOW)
        try:
            unpacked += member.decompress(content, max_bytes + 1 - len(unpacked))
        except zlib.error as error:
            raise MalformedBody(f"the body is not gzip, as its Content-Encoding says: {error}") from error
        _check_size(len(unpacked), max_bytes)
        if not member.eof:
            raise MalformedBody("the body ends in the middle of what its Content-Encoding says is gzip")
        content = member.unused_data
        if not content:
            return bytes(unpacked)
    raise MalformedBody(f"the body is of more than {MAX_MEMBERS} gzip members; pack it in one")


def _unpack_zstd(content: bytes, max_bytes: int) -> bytes:
    """Frames may follow one another, as members of gzip may (RFC 8878, section 3)."""
    # Imported here: few clients pack their requests so.
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    unpacked = bytearray()
    for _ in range(MAX_MEMBERS):
        frame = zstd.ZstdDecompressor()
        try:
            unpacked += frame.decompress(content, max_bytes + 1 - len(unpacked))
        except zstd.ZstdError as error:
            raise MalformedBody(f"the body is not zstd, as its Content-Encoding says: {error}") from error
        _check_size(len(unpacked), max_bytes)
        if not frame.eof:
            raise MalformedBody("the body ends in the middle of what its Content-Encoding says is zstd")
        content = frame.unused_data
        if not content:
            return bytes(unpacked)
    raise MalformedBody(f"the body is of more than {MAX_MEMBERS} zstd frames; pack it in one")


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise BodyTooLarge(
            f"unpacked, the body is larger than {max_bytes} bytes; send fewer inputs at a time"
        )


_UNPACKERS: dict[bytes, Callable[[bytes, int], bytes]] = {
    b"gzip": _unpack_gzip,
    b"x-gzip": _unpack_gzip,
    b"zstd": _unpack_zstd,
}
