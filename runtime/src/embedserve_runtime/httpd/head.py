"""The first bytes of answers."""

from __future__ import annotations

import http
import time
from collections.abc import Iterable
from functools import cache

Header = tuple[bytes, bytes]

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@cache
def status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, http.HTTPStatus(status).phrase.encode())


def head(status: int, headers: Iterable[Header]) -> bytes:
    """Names and values are ours or checked already; nothing is escaped."""
    return b"%b%b\r\n" % (first_lines(status), b"".join([b"%b: %b\r\n" % header for header in headers]))


def first_lines(status: int) -> bytes:
    """What every answer begins with."""
    return status_line(status) + _date(int(time.time()))


def refusal(status: int) -> bytes:
    """A whole answer to what is no request; the connection ends with it."""
    return head(status, ((b"content-length", b"0"), (b"connection", b"close")))


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_last: tuple[int, bytes] = (0, b"")


def _date(second: int) -> bytes:
    """RFC 9110's date header, made once a second; `strftime` would follow the locale."""
    global _last  # noqa: PLW0603  # a cache of one entry
    if _last[0] != second:
        at = time.gmtime(second)
        text = (
            f"date: {_DAYS[at.tm_wday]}, {at.tm_mday:02} {_MONTHS[at.tm_mon - 1]} {at.tm_year} "
            f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT\r\n"
        )
        _last = (second, text.encode())
    return _last[1]
