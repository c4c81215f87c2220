"""Looks after requests that take long: clients that go away, and bodies that do not arrive.

Most requests are answered before anybody looks: they cost an entry in a queue, not a task or a timer of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque

from embedserve_runtime.api.asgi import ClientGone, Receive
from embedserve_runtime.api.errors import BodyTimeout

# Requests still unanswered after this long get a task that listens for the end of their connection.
WATCH_SECONDS = 0.02
# How long a client may take to send a body: 16 MiB at 2 Mbit/s.
BODY_SECONDS = 60.0


class Watch:
    """Of one request. Cancels the task that handles it, with `verdict` as the reason."""

    __slots__ = ("_due", "_listener", "_reading", "_receive", "_timer", "is_over", "task", "verdict")

    def __init__(self, task: asyncio.Task[object], receive: Receive) -> None:
        self.task = task
        self.verdict: ClientGone | BodyTimeout | None = None
        self.is_over = False
        self._receive = receive
        self._due = False
        self._reading = True
        self._timer: asyncio.TimerHandle | None = None
        self._listener: asyncio.Task[None] | None = None

    def body_is_read(self) -> None:
        """From here on nobody else receives, so the end of the connection can be listened for."""
        self._reading = False
        if self._timer:
            self._timer.cancel()
        if self._due:
            self._listener = self.task.get_loop().create_task(self._listen())

    def start(self) -> None:
        """The request has taken long enough to look after it."""
        self._due = True
        loop = self.task.get_loop()
        if self._reading:
            self._timer = loop.call_later(BODY_SECONDS - WATCH_SECONDS, self._time_out)
        else:
            self._listener = loop.create_task(self._listen())

    def stop(self) -> None:
        self.is_over = True
        if self._timer:
            self._timer.cancel()
        # Let go of: the two know each other, and would else keep the request's body until a collection.
        listener, self._listener = self._listener, None
        if listener:
            listener.cancel()

    def _time_out(self) -> None:
        self._end(BodyTimeout(f"the body did not arrive within {BODY_SECONDS:.0f} s"))

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
