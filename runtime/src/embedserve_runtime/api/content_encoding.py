"""Decompresses request bodies (`Content-Encoding`) within a bound."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from embedserve_runtime.api.errors import BodyTooLarge, MalformedBody, UnsupportedEncoding

MAX_MEMBERS = 16
"""The limit for one body. Each member costs a decompressor and a copy of what follows it, however small it is."""
GZIP_WINDOW = 16 + zlib.MAX_WBITS
"""The value of zlib's `wbits` for the gzip format."""


class _Decompressor(Protocol):
    """Decompresses one gzip member or one zstd frame, as those of the standard library do."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Format(NamedTuple):
    """A compressed format. parts: what it calls the pieces that a body may be made of."""

    name: str
    parts: str
    new_decompressor: Callable[[], _Decompressor]
    error: type[Exception]


def find_decoder(encoding: bytes) -> Callable[[bytes, int], bytes] | None:
    """Return the function that decodes a body with this value of Content-Encoding; None where it is not encoded.

    The function takes the body and the number of bytes that may come out. It raises MalformedBody for a body that is
    not what the header says, and BodyTooLarge before more than that number of bytes are decompressed.

    Raises UnsupportedEncoding for an encoding that is not read, several one after another included.
    """
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return None
    if name not in _FORMATS:
        header = encoding.decode("latin-1")
        raise UnsupportedEncoding(f"Content-Encoding {header!r} is not read; send gzip, zstd or none")
    return partial(_decompress, _FORMATS[name]())


def _decompress(compressed: _Format, content: bytes, max_bytes: int) -> bytes:
    """Decompress all members of a body, whose contents follow one another (RFC 1952, section 2.2; RFC 8878, section
    3)."""
    name = compressed.name
    decompressed = bytearray()
    for _ in range(MAX_MEMBERS):
        member = compressed.new_decompressor()
        try:
            decompressed += member.decompress(content, max_bytes + 1 - len(decompressed))
        except compressed.error as error:
            raise MalformedBody(f"the body is not {name}, as its Content-Encoding says: {error}") from error
        if len(decompressed) > max_bytes:
            raise BodyTooLarge(
                f"unpacked, the body is larger than {max_bytes} bytes; send fewer inputs at a time"
            )
        if not member.eof:
            raise MalformedBody(f"the body ends in the middle of what its Content-Encoding says is {name}")
        content = member.unused_data
        if not content:
            return bytes(decompressed)
    raise MalformedBody(f"the body is of more than {MAX_MEMBERS} {name} {compressed.parts}; pack it in one")


def _gzip_format() -> _Format:
    return _Format("gzip", "members", partial(zlib.decompressobj, GZIP_WINDOW), zlib.error)


def _zstd_format() -> _Format:
    # Imported here: few clients compress their requests so.
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return _Format("zstd", "frames", zstd.ZstdDecompressor, zstd.ZstdError)


_FORMATS: dict[bytes, Callable[[], _Format]] = {
    b"gzip": _gzip_format,
    b"x-gzip": _gzip_format,
    b"zstd": _zstd_format,
}
