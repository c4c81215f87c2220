"""Threads that clients take turns on, so that what one client has tokenized holds up no other."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import EllipsisType
from typing import Any, TypeVar, TypeVarTuple, cast

from embedserve_runtime.service.current_client import get_client_name

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

# For so long after a request of one client another is not given the last free thread.
SHARED_SECONDS = 60.0

_Work = tuple[asyncio.Future[Any], Callable[[], Any]]


class FairThreadPool:
    """A thread pool that serves clients in turn. It belongs to one event loop.

    Clients take turns, and a client that runs something leaves one thread free for the others while there are others.
    Requests whose clients are not told apart are those of one, to which all of this is as to a client alone. What waits
    is bounded by the requests in hand.

    count: the number of threads. clock: seconds that never go back.
    """

    def __init__(self, count: int, name: str, clock: Callable[[], float]) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._clock = clock
        self._free = count
        self._waiting: OrderedDict[str | None, deque[_Work]] = OrderedDict()
        self._running: Counter[str | None] = Counter()
        # The two that sent something last, with its time; the newest first.
        self._last_uses: list[tuple[str | None, float]] = []

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a function for the client of the present task, and return what it returns or raise what it raises."""
        name = get_client_name()
        earlier = [entry for entry in self._last_uses if entry[0] != name]
        self._last_uses = [(name, self._clock()), *earlier[:1]]
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, deque()).append((future, partial(function, *arguments)))
        self._start_waiting()
        return cast(T, await future)

    def close(self) -> None:
        """Start nothing more, and cancel what waits."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        while self._waiting:
            for future, _ in self._waiting.popitem()[1]:
                future.cancel()

    def _start_waiting(self) -> None:
        while self._free and (name := self._find_next()) is not ...:
            works = self._waiting.pop(name)
            future, function = works.popleft()
            if works:
                self._waiting[name] = works  # at the end
            if not future.cancelled():
                self._start(name, future, function)

    def _find_next(self) -> str | EllipsisType | None:
        """Return the client whose turn it is; an ellipsis where none may start anything."""
        return next((name for name in self._waiting if self._may_start(name)), ...)

    def _may_start(self, name: str | None) -> bool:
        is_last_thread = self._free == 1 and self._running[name] > 0
        return not (is_last_thread and self._has_others(name))

    def _has_others(self, name: str | None) -> bool:
        now = self._clock()
        return any(client != name and now - last_use < SHARED_SECONDS for client, last_use in self._last_uses)

    def _start(self, name: str | None, future: asyncio.Future[Any], function: Callable[[], Any]) -> None:
        self._free -= 1
        self._running[name] += 1
        running = asyncio.get_running_loop().run_in_executor(self._threads, function)
        running.add_done_callback(partial(self._end, name, future))

    def _end(self, name: str | None, future: asyncio.Future[Any], running: asyncio.Future[Any]) -> None:
        self._free += 1
        self._running[name] -= 1
        if not self._running[name]:
            del self._running[name]
        if running.cancelled():
            future.cancel()
        elif (error := running.exception()) is not None:
            if not future.done():
                future.set_exception(error)
        elif not future.done():
            future.set_result(running.result())
        self._start_waiting()
