"""One client: its requests are answered in their order.

One request at a time is worked on; what a client sends ahead waits here, and reading stops while something does. A
client that closes its sending side is taken as gone: there is no telling it from one that has closed altogether.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

from embedserve_runtime.httpd.head import refusal
from embedserve_runtime.httpd.incoming import Incoming
from embedserve_runtime.httpd.turn import QuickRoute, QuickTurn, Scope, Turn, Whole

log = logging.getLogger(__name__)

Application = Callable[
    [Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]

# For a request's head from its first byte; for bytes of an answer that the client does not take.
HEAD_SECONDS = 30.0
WRITE_SECONDS = 60.0
# After the last answer on a connection: so long the client may take to close it.
LINGER_SECONDS = 2.0
# For a new connection's first request, once the server is to stop.
LAST_CHANCE_SECONDS = 1.0

HEAD_TIMEOUT = 408


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
        self._incoming = Incoming(self)
        self._turn: Turn | QuickTurn | None = None  # worked on
        self._ahead: deque[Turn] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._can_write: asyncio.Event = asyncio.Event()
        self._can_write.set()
        self._holds = 0
        self._is_fresh = True  # no request has come in yet
        self._is_last_call = False

    @property
    def is_idle(self) -> bool:
        """No request is worked on, nor has one begun to come in."""
        return self._turn is None and not self._incoming.is_in_head

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
        if not self._is_over:
            self._incoming.feed(data)

    # -- from what comes in

    @property
    def is_free(self) -> bool:
        return self._turn is None

    @property
    def quick(self) -> Mapping[bytes, QuickRoute]:
        return self._host.quick

    def head_begins(self) -> None:
        self._is_fresh = False
        if self._turn is None:
            self.due = self._loop.time() + HEAD_SECONDS

    def take(self, turn: Turn) -> None:
        if self._turn is None:
            self._start(turn)
        else:
            self._ahead.append(turn)
            if len(self._ahead) == 1:
                self.hold_reading(True)

    def take_whole(self, request: Whole, body: bytes) -> bool:
        turn = QuickTurn(self, request.keeps_alive and not self._host.is_stopping, request.is_http_10)
        self._turn = turn
        abandon = request.route(request.headers, body, turn.reply)
        if abandon is None:
            self._turn = None
            return False
        if not turn.is_answered:
            turn.abandon = abandon
            self.due = math.inf
        return True

    def body_is_read(self, turn: Turn) -> None:
        turn.complete()
        if turn.is_answered:
            self._next()

    def refuse(self, status: int) -> None:
        """Answer what is no request, behind the answers that are due, and read no more."""
        turn = self._turn
        if turn is None:
            self._host.refused(status)
            self.write(refusal(status))
            self._end(lingers=True)
        elif self._incoming.reading is turn:  # its body cannot be read
            turn.gone()
            if not turn.is_answered:
                self.write(refusal(status))
            self._end(lingers=True)
        else:
            self._host.refused(status)
            turn.keeps_alive = False
            self._ahead.clear()
            self._incoming.reading = None

    def overrun(self) -> None:
        self._end(lingers=True)

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
        if self._incoming.is_in_head:
            seconds = HEAD_SECONDS
        else:
            seconds = LAST_CHANCE_SECONDS if self._host.is_stopping else self._host.idle_seconds
        self.due = self._loop.time() + seconds

    def time_out(self) -> None:
        """`due` has come."""
        if self._turn is None and self._incoming.is_in_head and not self._is_over:
            self.refuse(HEAD_TIMEOUT)
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
