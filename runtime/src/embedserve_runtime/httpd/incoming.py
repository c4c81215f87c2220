"""What one client sends: bytes to requests, by the parser, or by a head that is known.

Knows nothing of answers and their order: each request is handed on as soon as its head is read, small ones once they
are whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import unquote

import httptools

from embedserve_runtime.httpd.head import Header
from embedserve_runtime.httpd.repeat import Repeatable
from embedserve_runtime.httpd.turn import Channel, QuickRoute, Scope, Turn, Whole

# Of one request's line and headers together.
HEAD_BYTES = 65_536
# A body that the application did not read is read away up to here, so that the client gets to read the answer.
DISCARDED_BYTES = 1_048_576

BAD_REQUEST = 400
HEAD_TOO_LARGE = 431


class Taker(Channel, Protocol):
    """Where requests go."""

    @property
    def is_free(self) -> bool:
        """No request is worked on."""
        ...

    @property
    def quick(self) -> Mapping[bytes, QuickRoute]:
        """By the target of a POST."""
        ...

    def head_begins(self) -> None: ...

    def take(self, turn: Turn) -> None:
        """A request whose head has been read; its body follows."""
        ...

    def take_whole(self, request: Whole, body: bytes) -> bool:
        """Begin with a request, if its route takes it; only while free."""
        ...

    def body_is_read(self, turn: Turn) -> None: ...

    def refuse(self, status: int) -> None:
        """What comes in is no request, and nothing is read any more."""
        ...

    def overrun(self) -> None:
        """A body that has been answered already goes on for too long."""
        ...


class Incoming:
    """The reading side of a connection."""

    def __init__(self, taker: Taker) -> None:
        self.is_in_head = False
        self.reading: Turn | None = None  # whose body comes in
        self._taker = taker
        self._parser = httptools.HttpRequestParser(self)
        self._quick: QuickRoute | None = None  # takes the request coming in, if that is whole
        self._whole = b""  # its body so far
        self._read = b""  # the bytes that the parser is given
        self._last: Whole | None = None
        self._head_bytes = 0
        self._discarded = 0
        self._is_resuming = False
        self._url = b""
        self._headers: list[Header] = []

    def feed(self, data: bytes) -> None:
        last = self._last
        if last and last.repeats and not self.is_in_head and self.reading is None and self._taker.is_free:
            body = last.repeats.body_in(data)
            if body is not None and self._taker.take_whole(last, body):
                return
        if self.is_in_head or self.reading is None:
            self._head_bytes += len(data)
        self._read = data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if self._quick:
                self._give_to_application()
            self._taker.refuse(BAD_REQUEST)
        else:
            if self._quick:
                self._give_to_application()
            if self.is_in_head and self._head_bytes > HEAD_BYTES:
                self._taker.refuse(HEAD_TOO_LARGE)

    def _decline_upgrade(self, rest: bytes) -> None:
        """No other protocol is spoken here, and the request is answered as it stands.

        The parser has stopped before the body. A new one is told how long that is, by the same headers.
        """
        self._parser = httptools.HttpRequestParser(self)
        if self.reading:
            framing = [
                b"%b: %b\r\n" % header
                for header in self._headers
                if header[0] in {b"content-length", b"transfer-encoding"}
            ]
            self._headers = []
            self._is_resuming = True
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")
        if rest:
            self.feed(rest)

    # -- from the parser

    def on_message_begin(self) -> None:
        if self._is_resuming:
            return
        self.is_in_head = True
        self._head_bytes = 0
        self._url = b""
        self._headers = []
        self._taker.head_begins()

    def on_url(self, data: bytes) -> None:
        self._url += data

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._is_resuming:
            self._is_resuming = False
            return
        self.is_in_head = False
        parser = self._parser
        if self._taker.is_free and parser.get_method() == b"POST" and not parser.should_upgrade():
            self._quick = self._taker.quick.get(self._url)
        if self._quick is None or any(name == b"expect" for name, _ in self._headers):
            self._give_to_application()

    def _give_to_application(self) -> None:
        """The request whose head has been read, with what there is of its body."""
        self._quick = None
        parser = self._parser
        path, query = _split(self._url)
        http_version = parser.get_http_version()
        scope: Scope = {
            "type": "http",
            "method": parser.get_method().decode("ascii"),
            "path": path,
            "query_string": query,
            "headers": self._headers,
            "http_version": http_version,
        }
        self.reading = turn = Turn(
            self._taker,
            scope,
            keeps_alive=parser.should_keep_alive(),
            is_http_10=http_version == "1.0",
            expects_continue=any(
                name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers
            ),
        )
        self._taker.take(turn)
        if self._whole:
            turn.feed(self._whole)
            self._whole = b""

    def on_body(self, data: bytes) -> None:
        if self._quick:
            self._whole = self._whole + data if self._whole else data
            return
        turn = self.reading
        if turn is None:
            return
        if turn.is_answered:
            self._discarded += len(data)
            if self._discarded > DISCARDED_BYTES:
                self._taker.overrun()
        else:
            turn.feed(data)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # `_decline_upgrade` goes on
        if self._quick:
            if self._is_taken_whole(self._quick):
                return
            self._give_to_application()
        turn, self.reading = self.reading, None
        self._discarded = 0
        if turn is not None:
            self._taker.body_is_read(turn)

    def _is_taken_whole(self, route: QuickRoute) -> bool:
        parser, body = self._parser, self._whole
        repeats = Repeatable.of(self._read, self._headers, len(body))
        request = Whole(
            route,
            repeats.headers if repeats else dict(self._headers),
            parser.should_keep_alive(),
            parser.get_http_version() == "1.0",
            repeats,
        )
        # What the parser calls back for does not count as coming in any more.
        self._quick, self._whole = None, b""
        if not self._taker.take_whole(request, body):
            self._quick, self._whole = route, body
            return False
        self._last = request
        return True


def _split(target: bytes) -> tuple[str, bytes]:
    """Path and query of a request target: a path, or a whole URL as proxies get it. Raises HttpParserError."""
    if not target.startswith(b"/"):
        url = httptools.parse_url(target)
        target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
    raw_path, _, query = target.partition(b"?")
    path = raw_path.decode("ascii", "replace")
    return unquote(path) if "%" in path else path, query
