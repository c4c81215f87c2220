"""Watches requests that take long: for clients that go away, and for bodies that do not arrive.

FastAPI goes on with a request whose client is gone, and nothing bounds the time of a body. Most requests are answered
before anybody looks: they cost an entry in a queue, not a task or a timer of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import Receive

from embedserve_runtime.api.errors import BodyTimeout
from embedserve_runtime.server import limits

WATCH_SECONDS = 0.02
"""Requests still unanswered after this long get a task that listens for the end of their connection."""


class ClientGone(Exception):
    """The client closed the connection; nobody waits for an answer."""


class Watch:
    """The watch of one request. Cancels the task that handles it, with `verdict` as the reason."""

    __slots__ = (
        "_is_due",
        "_listener",
        "_reads_body",
        "_receive",
        "_started",
        "_timer",
        "is_over",
        "received",
        "task",
        "verdict",
    )

    def __init__(self, task: asyncio.Task[object], receive: Receive) -> None:
        self.task = task
        self.verdict: ClientGone | BodyTimeout | None = None
        self.is_over = False
        self.received = 0
        self._receive = receive
        self._started = task.get_loop().time()
        self._is_due = False
        self._reads_body = True
        self._timer: asyncio.TimerHandle | None = None
        self._listener: asyncio.Task[None] | None = None

    def body_is_read(self) -> None:
        """From here on nobody else receives, so the end of the connection can be listened for."""
        self._reads_body = False
        if self._timer:
            self._timer.cancel()
        if self._is_due:
            self._listener = self.task.get_loop().create_task(self._listen())

    def start(self) -> None:
        """The request has taken long enough to be watched."""
        self._is_due = True
        if self._reads_body:
            self._check_body()
        else:
            self._listener = self.task.get_loop().create_task(self._listen())

    def stop(self) -> None:
        self.is_over = True
        if self._timer:
            self._timer.cancel()
        # Let go of: the two know each other, and would else keep the request's body until a collection.
        listener, self._listener = self._listener, None
        if listener:
            listener.cancel()

    def _check_body(self) -> None:
        """A body may take as long as it comes at a least rate; a client that trickles bytes does not keep its place."""
        loop = self.task.get_loop()
        allowed = limits.BODY_SECONDS + self.received / limits.MIN_BODY_BYTES_PER_SECOND
        due = self._started + allowed
        if loop.time() < due:
            self._timer = loop.call_at(due, self._check_body)
        else:
            self._end(BodyTimeout(f"the body did not arrive within {allowed:.0f} s"))

    async def _listen(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._end(ClientGone())

    def _end(self, verdict: ClientGone | BodyTimeout) -> None:
        self.verdict = verdict
        self.task.cancel()


class Watcher:
    """Starts the watches of the requests that take long. One timer for all of them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Watch]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, receive: Receive) -> Watch:
        """To be called by the task that handles the request, and stopped by it."""
        task = asyncio.current_task()
        assert task is not None, "requests are handled in tasks"
        watch = Watch(task, receive)
        loop = task.get_loop()
        self._waiting.append((loop.time() + WATCH_SECONDS, watch))
        if self._timer is None:
            self._timer = loop.call_later(WATCH_SECONDS, self._start_due, loop)
        return watch

    def _start_due(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        while self._waiting and (self._waiting[0][0] <= now or self._waiting[0][1].is_over):
            _, watch = self._waiting.popleft()
            if not watch.is_over:
                watch.start()
        self._timer = None
        if self._waiting:
            self._timer = loop.call_later(self._waiting[0][0] - now, self._start_due, loop)
