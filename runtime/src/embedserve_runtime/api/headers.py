"""Reads the headers of a request, or the metadata of a call, by name."""

from __future__ import annotations

from collections.abc import Sequence

_COMBINED = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"x-embedserve-timeout",
        b"x-embedserve-vector-space",
    }
)
"""Headers that decide whether and how a request is answered. With several values they are one with commas between
(RFC 9110, section 5.3), which none of them takes: a proxy in front may have read another one than is read here."""


def read_headers(pairs: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the value of each header by its name, in lower case; of most that come several times the last one."""
    headers = dict(pairs)
    if len(headers) < len(pairs):
        for name in _COMBINED & headers.keys():
            headers[name] = b", ".join(value for key, value in pairs if key == name)
    return headers
