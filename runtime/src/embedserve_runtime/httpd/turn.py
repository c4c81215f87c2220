"""One request and its answer: as ASGI sees them, and as those see them who answer without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple, Protocol

from embedserve_runtime.httpd.head import CONTINUE, Header, first_lines, head
from embedserve_runtime.httpd.repeat import Repeatable

Scope = MutableMapping[str, Any]
# Status, the lines of headers without those of the connection, body, and whether the connection ends with it.
Reply = Callable[[int, bytes, bytes, bool], None]
# Takes a request whose body came with its head, and gives what is called if its client goes before the answer. `reply`
# may be called at once. None where it leaves the request to the application; then nothing has been done.
QuickRoute = Callable[[Mapping[bytes, bytes], bytes, Reply], Callable[[], None] | None]

# Bytes of a body that wait here for the application before reading stops.
BODY_BUFFER = 262_144


class Channel(Protocol):
    """What a turn needs of its connection."""

    def write(self, data: bytes) -> None: ...
    def hold_reading(self, hold: bool) -> None: ...
    async def drained(self) -> None: ...
    def answered(self, turn: QuickTurn) -> None: ...


class Whole(NamedTuple):
    """A request without its body, for its route. repeats: its head, where that may come again."""

    route: QuickRoute
    headers: Mapping[bytes, bytes]
    keeps_alive: bool
    is_http_10: bool
    repeats: Repeatable | None


class QuickTurn:
    """A request that came whole and is worked on without a task.

    abandon: called when its client goes before the answer; None from the answer on, since it knows this turn, and what
    knows each other is freed only by a collection.
    """

    __slots__ = ("_channel", "_is_http_10", "abandon", "is_answered", "is_gone", "keeps_alive")
    body_is_complete = True

    def __init__(self, channel: Channel, keeps_alive: bool, is_http_10: bool) -> None:
        self.keeps_alive = keeps_alive
        self.is_answered = False
        self.is_gone = False
        self.abandon: Callable[[], None] | None = None
        self._channel = channel
        self._is_http_10 = is_http_10

    def gone(self) -> None:
        self.is_gone = True
        abandon, self.abandon = self.abandon, None
        if abandon:
            abandon()

    def reply(self, status: int, lines: bytes, body: bytes, is_last: bool) -> None:
        self.is_answered = True
        self.abandon = None
        if self.is_gone:
            return
        if is_last or not self.keeps_alive:
            self.keeps_alive = False
            lines += b"connection: close\r\n"
        elif self._is_http_10:
            lines += b"connection: keep-alive\r\n"
        self._channel.write(b"%b%b\r\n%b" % (first_lines(status), lines, body))
        self._channel.answered(self)


class Turn:
    """keeps_alive: whether the connection may go on after the answer; settled when the answer begins."""

    def __init__(
        self,
        channel: Channel,
        scope: Scope,
        *,
        keeps_alive: bool,
        is_http_10: bool,
        expects_continue: bool,
    ) -> None:
        self.scope = scope
        self.keeps_alive = keeps_alive
        self.is_answered = False
        self.is_gone = False
        self.body_is_complete = False
        self.expects_continue = expects_continue
        self._channel = channel
        self._is_http_10 = is_http_10
        self._body: list[bytes] = []
        self._buffered = 0
        self._is_taken = False
        self._wake: asyncio.Future[None] | None = None
        self._head = b""

    # -- from the connection

    def feed(self, data: bytes) -> None:
        if self.is_answered:
            return  # the application did not want it
        self._body.append(data)
        self._buffered += len(data)
        if self._buffered > BODY_BUFFER:
            self._channel.hold_reading(True)
        self._wake_up()

    def complete(self) -> None:
        self.body_is_complete = True
        self._wake_up()

    def gone(self) -> None:
        self.is_gone = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake and not self._wake.done():
            self._wake.set_result(None)

    # -- from the application

    async def receive(self) -> MutableMapping[str, Any]:
        """The body in pieces; after its end, and while nothing comes, waits for the client to go away."""
        if self.expects_continue and not self.body_is_complete and not self.is_answered:
            self._channel.write(CONTINUE)
        self.expects_continue = False
        while not self._has_news():
            await self._sleep()
        if self.is_gone or self._is_taken:
            return {"type": "http.disconnect"}
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        if self._buffered > BODY_BUFFER:
            self._channel.hold_reading(False)
        self._buffered = 0
        self._is_taken = self.body_is_complete
        return {"type": "http.request", "body": data, "more_body": not self._is_taken}

    def _has_news(self) -> bool:
        if self._is_taken:
            return self.is_gone or self.is_answered
        return self.is_gone or self.body_is_complete or bool(self._body)

    async def _sleep(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """A start with a `content-length`, then one body; to a client that is gone nothing is sent."""
        if message["type"] == "http.response.start":
            self._head = self._answer_head(message["status"], message["headers"])
            return
        self.is_answered = True
        if not self.is_gone:
            body = b"" if self.scope["method"] == "HEAD" else message["body"]
            self._channel.write(self._head + body)
            await self._channel.drained()
        self._wake_up()

    def _answer_head(self, status: int, headers: list[Header]) -> bytes:
        if (b"connection", b"close") in headers:
            self.keeps_alive = False
        elif not self.keeps_alive:
            headers = [*headers, (b"connection", b"close")]
        elif self._is_http_10:
            headers = [*headers, (b"connection", b"keep-alive")]
        return head(status, headers)
