"""Notices that a client has gone away while its request waits, so that queued work can be dropped.

Most requests are answered before anybody looks: they cost an entry in a queue, not a task or a timer of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque

from embedserve_runtime.api.asgi import Receive

# Requests still unanswered after this long get a task that listens for the end of their connection.
WATCH_SECONDS = 0.02


class Watch:
    """Of one request. Cancels the task that handles it when the client goes away."""

    __slots__ = ("_receive", "_stopped", "_watcher", "client_gone", "task")

    def __init__(self, task: asyncio.Task[object], receive: Receive) -> None:
        self.task = task
        self.client_gone = False
        self._receive = receive
        self._stopped = False
        self._watcher: asyncio.Task[None] | None = None

    def start(self) -> None:
        if not self._stopped:
            self._watcher = self.task.get_loop().create_task(self._listen())

    def stop(self) -> None:
        self._stopped = True
        if self._watcher:
            self._watcher.cancel()

    async def _listen(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.client_gone = True
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
        while self._waiting and self._waiting[0][0] <= now:
            self._waiting.popleft()[1].start()
        self._timer = None
        if self._waiting:
            self._timer = loop.call_later(self._waiting[0][0] - now, self._start_due, loop)
