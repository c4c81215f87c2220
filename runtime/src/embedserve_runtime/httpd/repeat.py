"""A client on a kept connection sends the same head with each request, but for the length of the body.

So the head is parsed once, and what equals it byte for byte later is not parsed again. Whatever does not equal it goes
to the parser.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from embedserve_runtime.httpd.head import Header

# Longer ones are parsed each time.
MOST_HEAD_BYTES = 2_048
# Digits of a length: beyond, no body comes in one read.
MOST_DIGITS = 7

_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]+)\r\n", re.IGNORECASE)


class Repeatable(NamedTuple):
    """A head that the parser has taken: the bytes before and after the digits of its length.

    headers: all but the length.
    """

    before: bytes
    after: bytes
    headers: Mapping[bytes, bytes]

    @classmethod
    def of(cls, data: bytes, headers: Sequence[Header], body_bytes: int) -> Repeatable | None:
        """data: what was read, which must be one request with a body of so many bytes and nothing else."""
        head = data[: len(data) - body_bytes]
        if len(head) > MOST_HEAD_BYTES or not head.endswith(b"\r\n\r\n"):
            return None
        found = _LENGTH.search(head)
        named = dict(headers)
        if found is None or int(found[1]) != body_bytes or len(named) != len(headers):
            return None
        del named[b"content-length"]
        if b"transfer-encoding" in named or head.find(b"\r\n\r\n") != len(head) - 4:
            return None
        return cls(head[: found.start(1)], head[found.end(1) :], named)

    def body_in(self, data: bytes) -> bytes | None:
        """The body of a request that is this head and all of its body; None where it is anything else."""
        before, after = self.before, self.after
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(b"\r", start, start + MOST_DIGITS + 1)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(after, end):
            return None
        body = data[end + len(after) :]
        return body if len(body) == int(digits) else None
