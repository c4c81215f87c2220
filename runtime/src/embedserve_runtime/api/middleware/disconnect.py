"""Watches long requests: for clients that disconnect, and for bodies that do not arrive.

FastAPI goes on with a request whose client has disconnected, and does not bound the time of a body. Most requests are
answered before they are watched: they cost an entry in a queue, not a task or a timer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from starlette.types import Receive

from embedserve_runtime.api.errors import BodyTimeout

BODY_SECONDS = 60.0
"""Seconds that a body may take to arrive; a large one may take longer at `MIN_BODY_BYTES_PER_SECOND`."""
MIN_BODY_BYTES_PER_SECOND = 16_384
WATCH_SECONDS = 0.25
"""Requests still unanswered after this long get a task that listens for the end of their connection.

The task costs as much CPU time as reading the request, and a full queue of short texts is answered sooner than this.
"""


class ClientDisconnected(Exception):
    """The client has closed the connection and does not wait for an answer."""


class RequestWatch:
    """Watches one request and cancels the task that handles it. cancel_reason: set when it has done so."""

    __slots__ = (
        "_is_due",
        "_listener",
        "_reads_body",
        "_receive",
        "_started",
        "_timer",
        "cancel_reason",
        "received",
        "task",
    )

    def __init__(self, task: asyncio.Task[object], receive: Receive) -> None:
        self.task = task
        self.cancel_reason: ClientDisconnected | BodyTimeout | None = None
        self.received = 0
        self._receive = receive
        self._started = task.get_loop().time()
        self._is_due = False
        self._reads_body = True
        self._timer: asyncio.TimerHandle | None = None
        self._listener: asyncio.Task[None] | None = None

    def body_is_read(self) -> None:
        """Start to listen for a disconnect: from here on nobody else receives."""
        self._reads_body = False
        if self._timer:
            self._timer.cancel()
        if self._is_due:
            self._listener = self.task.get_loop().create_task(self._listen())

    def start(self) -> None:
        """Start to watch a request that has taken long enough."""
        self._is_due = True
        if self._reads_body:
            self._check_body()
        else:
            self._listener = self.task.get_loop().create_task(self._listen())

    def stop(self) -> None:
        """Stop to watch; `RequestWatcher.stop` calls it."""
        if self._timer:
            self._timer.cancel()
        # Released, since the reference cycle would keep the request's body until a garbage collection.
        listener, self._listener = self._listener, None
        if listener:
            listener.cancel()

    def _check_body(self) -> None:
        """Cancel a request whose body arrives below the minimum rate: a client that trickles bytes must not block
        others."""
        loop = self.task.get_loop()
        allowed = BODY_SECONDS + self.received / MIN_BODY_BYTES_PER_SECOND
        due = self._started + allowed
        if loop.time() < due:
            self._timer = loop.call_at(due, self._check_body)
        else:
            self._cancel(BodyTimeout(f"the body did not arrive within {allowed:.0f} s"))

    async def _listen(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._cancel(ClientDisconnected())

    def _cancel(self, cancel_reason: ClientDisconnected | BodyTimeout) -> None:
        self.cancel_reason = cancel_reason
        self.task.cancel()


class RequestWatcher:
    """Starts the watches of long requests, with one timer for all of them."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[RequestWatch, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, receive: Receive) -> RequestWatch:
        """Create a watch for the request of the current task, which has to stop it."""
        task = asyncio.current_task()
        assert task is not None, "requests are handled in tasks"
        watch = RequestWatch(task, receive)
        loop = task.get_loop()
        self._waiting[watch] = loop.time() + WATCH_SECONDS
        if self._timer is None:
            self._timer = loop.call_later(WATCH_SECONDS, self._start_due, loop)
        return watch

    def stop(self, watch: RequestWatch) -> None:
        """Stop a watch, and keep nothing of its request."""
        self._waiting.pop(watch, None)
        watch.stop()

    def _start_due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while self._waiting:
            watch, due = next(iter(self._waiting.items()))
            if due > now:
                self._timer = loop.call_later(due - now, self._start_due, loop)
                return
            del self._waiting[watch]
            watch.start()
