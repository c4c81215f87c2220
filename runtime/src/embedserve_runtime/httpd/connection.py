"""One client: bytes to requests, requests to answers in their order.

One request at a time is worked on; what a client sends ahead waits here, and reading stops while something does. A
client that closes its sending side is taken as gone: there is no telling it from one that has closed altogether.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import unquote

import httptools

from embedserve_runtime.httpd.head import Header, refusal
from embedserve_runtime.httpd.repeat import Repeatable
from embedserve_runtime.httpd.turn import QuickTurn, Reply, Turn

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Application = Callable[
    [Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]

# Takes a request whose body came with its head, and gives what is called if its client goes before the answer. `reply`
# may be called at once. None where it leaves the request to the application; then nothing has been done.
QuickRoute = Callable[[Mapping[bytes, bytes], bytes, Reply], Callable[[], None] | None]

# Of one request's line and headers together.
HEAD_BYTES = 65_536
# A body that the application did not read is read away up to here, so that the client gets to read the answer.
DISCARDED_BYTES = 1_048_576
# For a request's head from its first byte; for bytes of an answer that the client does not take.
HEAD_SECONDS = 30.0
WRITE_SECONDS = 60.0
# After the last answer on a connection: so long the client may take to close it.
LINGER_SECONDS = 2.0
# For a new connection's first request, once the server is to stop.
LAST_CHANCE_SECONDS = 1.0

BAD_REQUEST = 400
HEAD_TIMEOUT = 408
HEAD_TOO_LARGE = 431


class _Repeated(NamedTuple):
    """A request without its body, as it may come again."""

    route: QuickRoute
    head: Repeatable
    keeps_alive: bool
    is_http_10: bool


class Host(Protocol):
    """What a connection needs of its server."""

    @property
    def app(self) -> Application: ...
    @property
    def quick(self) -> Mapping[bytes, QuickRoute]:
        """By the target of a POST."""
        ...

    @property
    def is_stopping(self) -> bool: ...
    @property
    def idle_seconds(self) -> float: ...

    def opened(self, connection: Connection) -> None: ...
    def closed(self, connection: Connection) -> None: ...
    def refused(self, status: int) -> None: ...


class Connection(asyncio.Protocol):
    """due: the time of the loop at which the server ends it, infinite while a request is worked on."""

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self.due = math.inf
        self._host = host
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._turn: Turn | QuickTurn | None = None  # worked on
        self._quick: QuickRoute | None = None  # takes the request coming in, if that is whole
        self._whole = b""
        self._read = b""  # of which it came
        self._last: _Repeated | None = None
        self._reading: Turn | None = None  # whose body comes in
        self._ahead: deque[Turn] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_in_head = False
        self._head_bytes = 0
        self._discarded = 0
        self._is_over = False
        self._can_write: asyncio.Event = asyncio.Event()
        self._can_write.set()
        self._holds = 0
        self._is_fresh = True  # no request has come in yet
        self._is_last_call = False
        self._is_resuming = False
        self._url = b""
        self._headers: list[Header] = []

    @property
    def is_idle(self) -> bool:
        """No request is worked on, nor has one begun to come in."""
        return self._turn is None and not self._is_in_head

    # -- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._wait_for_head()
        self._host.opened(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._is_over = True
        for turn in (self._turn, *self._ahead):
            if turn:
                turn.gone()
        self._can_write.set()
        self._host.closed(self)

    def pause_writing(self) -> None:
        self._can_write.clear()
        self.due = self._loop.time() + WRITE_SECONDS

    def resume_writing(self) -> None:
        self._can_write.set()
        if self._turn:
            self.due = math.inf

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._last and self._turn is None and not self._is_in_head and self._reading is None:
            body = self._last.head.body_in(data)
            if body is not None and self._answers_quickly(self._last, body):
                return
        if self._is_in_head or self._reading is None:
            self._head_bytes += len(data)
        self._read = data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if self._quick:
                self._give_to_application()
            self._refuse(BAD_REQUEST)
        else:
            if self._quick:
                self._give_to_application()
            if self._is_in_head and self._head_bytes > HEAD_BYTES:
                self._refuse(HEAD_TOO_LARGE)

    def _decline_upgrade(self, rest: bytes) -> None:
        """No other protocol is spoken here, and the request is answered as it stands.

        The parser has stopped before the body. A new one is told how long that is, by the same headers.
        """
        self._parser = httptools.HttpRequestParser(self)
        if self._reading:
            framing = [
                b"%b: %b\r\n" % header
                for header in self._headers
                if header[0] in {b"content-length", b"transfer-encoding"}
            ]
            self._headers = []
            self._is_resuming = True
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")
        if rest:
            self.data_received(rest)

    # -- from the parser

    def on_message_begin(self) -> None:
        if self._is_resuming:
            return
        self._is_in_head = True
        self._is_fresh = False
        self._head_bytes = 0
        self._url = b""
        self._headers = []
        if self._turn is None:
            self.due = self._loop.time() + HEAD_SECONDS

    def on_url(self, data: bytes) -> None:
        self._url += data

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._is_resuming:
            self._is_resuming = False
            return
        self._is_in_head = False
        parser = self._parser
        if self._turn is None and parser.get_method() == b"POST" and not parser.should_upgrade():
            self._quick = self._host.quick.get(self._url)
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
        turn = Turn(
            self,
            scope,
            keeps_alive=parser.should_keep_alive(),
            is_http_10=http_version == "1.0",
            expects_continue=any(
                name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers
            ),
        )
        self._reading = turn
        if self._turn is None:
            self._start(turn)
        else:
            self._ahead.append(turn)
            if len(self._ahead) == 1:
                self.hold_reading(True)
        if self._whole:
            turn.feed(self._whole)
            self._whole = b""

    def on_body(self, data: bytes) -> None:
        if self._quick:
            self._whole = self._whole + data if self._whole else data
            return
        turn = self._reading
        if turn is None:
            return
        if turn.is_answered:
            self._discarded += len(data)
            if self._discarded > DISCARDED_BYTES:
                self._end(lingers=True)
        else:
            turn.feed(data)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # `_decline_upgrade` goes on
        if self._quick:
            if self._is_taken_quickly(self._quick):
                return
            self._give_to_application()
        turn, self._reading = self._reading, None
        self._discarded = 0
        if turn is None:
            return
        turn.complete()
        if turn.is_answered:
            self._next()

    def _is_taken_quickly(self, route: QuickRoute) -> bool:
        """Begin with the request that has been parsed, if the route takes it."""
        parser, body = self._parser, self._whole
        repeatable = Repeatable.of(self._read, self._headers, len(body))
        one = _Repeated(
            route,
            repeatable or Repeatable(b"", b"", dict(self._headers)),
            parser.should_keep_alive(),
            parser.get_http_version() == "1.0",
        )
        # What the parser calls back for does not count as coming in any more.
        self._quick, self._whole = None, b""
        if not self._answers_quickly(one, body):
            self._quick, self._whole = route, body
            return False
        self._last = one if repeatable else None
        return True

    def _answers_quickly(self, one: _Repeated, body: bytes) -> bool:
        """Begin with a whole request, if the route takes it."""
        turn = QuickTurn(self, one.keeps_alive and not self._host.is_stopping, one.is_http_10)
        self._turn = turn
        abandon = one.route(one.head.headers, body, turn.reply)
        if abandon is None:
            self._turn = None
            return False
        if not turn.is_answered:
            turn.abandon = abandon
            self.due = math.inf
        return True

    # -- from the turn

    def answered(self, turn: QuickTurn) -> None:
        if self._turn is not turn:
            return  # given up meanwhile
        if self._can_write.is_set():
            self._next()
        else:
            self._task = self._loop.create_task(self._next_when_drained())

    async def _next_when_drained(self) -> None:
        await self.drained()
        self._next()

    def write(self, data: bytes) -> None:
        if not self._is_over:
            self._transport.write(data)

    async def drained(self) -> None:
        if not self._can_write.is_set():
            await self._can_write.wait()

    def hold_reading(self, hold: bool) -> None:
        if self._is_over:
            return
        self._holds += 1 if hold else -1
        if hold and self._holds == 1:
            self._transport.pause_reading()
        elif not hold and self._holds == 0:
            self._transport.resume_reading()

    # -- the order of things

    def _start(self, turn: Turn) -> None:
        self._turn = turn
        self.due = math.inf
        if self._host.is_stopping:
            turn.keeps_alive = False
        self._task = self._loop.create_task(self._run(turn))

    async def _run(self, turn: Turn) -> None:
        try:
            await self._host.app(turn.scope, turn.receive, turn.send)
        except Exception:  # the outermost place of a request: the application answers its own errors
            log.exception("unexpected error in the application")
        if self._turn is not turn:
            return  # given up meanwhile
        if not turn.is_answered:
            self.abort()
        elif turn.body_is_complete:
            self._next()
        elif turn.expects_continue or not turn.keeps_alive:
            self._end(lingers=True)  # the client was told not to send the body, or not to go on
        else:
            self.due = self._loop.time() + HEAD_SECONDS

    def _next(self) -> None:
        """The request in work is read and answered: on to the one behind it."""
        done, self._turn, self._task = self._turn, None, None
        if self._is_over or done is None:
            return
        if not done.keeps_alive or (self._host.is_stopping and not self._ahead):
            self._end()
        elif self._ahead:
            turn = self._ahead.popleft()
            if not self._ahead:
                self.hold_reading(False)
            self._start(turn)
        else:
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        if self._is_in_head:
            seconds = HEAD_SECONDS
        else:
            seconds = LAST_CHANCE_SECONDS if self._host.is_stopping else self._host.idle_seconds
        self.due = self._loop.time() + seconds

    def _refuse(self, status: int) -> None:
        """Answer what is no request, behind the answers that are due, and read no more."""
        turn = self._turn
        if turn is None:
            self._host.refused(status)
            self.write(refusal(status))
            self._end(lingers=True)
        elif self._reading is turn:  # its body cannot be read
            turn.gone()
            if not turn.is_answered:
                self.write(refusal(status))
            self._end(lingers=True)
        else:
            self._host.refused(status)
            turn.keeps_alive = False
            self._ahead.clear()
            self._reading = None

    def time_out(self) -> None:
        """`due` has come."""
        if self._turn is None and self._is_in_head and not self._is_over:
            self._refuse(HEAD_TIMEOUT)
        elif self._is_over and self._transport.get_write_buffer_size() and not self._is_last_call:
            self._is_last_call = True
            self.due = self._loop.time() + WRITE_SECONDS
        else:
            self.abort()

    def stop(self) -> None:
        """Take no further request after the one in work."""
        if self._turn:
            self._turn.keeps_alive = False
        elif self._is_fresh:
            self.due = self._loop.time() + LAST_CHANCE_SECONDS
        elif self.is_idle:
            self._end()

    def _end(self, *, lingers: bool = False) -> None:
        """Close once all is written.

        Where the client may still be sending, it closes first: the kernel throws our answer away when bytes come in
        for a closed socket.
        """
        if self._is_over:
            return
        if self._holds:
            self._transport.resume_reading()
        self._is_over = True
        self._turn = None
        self._ahead.clear()
        if lingers:
            self.due = self._loop.time() + LINGER_SECONDS
            self._transport.write_eof()
        else:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


def _split(target: bytes) -> tuple[str, bytes]:
    """Path and query of a request target: a path, or a whole URL as proxies get it. Raises HttpParserError."""
    if not target.startswith(b"/"):
        url = httptools.parse_url(target)
        target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
    raw_path, _, query = target.partition(b"?")
    path = raw_path.decode("ascii", "replace")
    return unquote(path) if "%" in path else path, query
