"""Many deadlines with one timer: a timer of the event loop for each request would cost more than queueing it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

# Entries of requests that were answered in time are swept out when they outnumber the others by this factor.
STALE_FACTOR = 2
STALE_FLOOR = 1_024


class Deadlines:
    """Calls `expired(number)` on the event loop for every number whose time has come and that was not discarded."""

    def __init__(self, clock: Callable[[], float], expired: Callable[[int], None]) -> None:
        self._clock = clock
        self._expired = expired
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int]] = []
        self._live: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline = 0.0

    def add(self, number: int, deadline: float) -> None:
        self._live.add(number)
        heapq.heappush(self._heap, (deadline, number))
        if self._timer is None or deadline < self._timer_deadline:
            self._arm(deadline)

    def discard(self, number: int) -> None:
        self._live.discard(number)
        if len(self._heap) > STALE_FACTOR * len(self._live) + STALE_FLOOR:
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapq.heapify(self._heap)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()
        self._live.clear()

    def _arm(self, deadline: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer_deadline = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - self._clock()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock()
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._live):
            _, number = heapq.heappop(self._heap)
            if number in self._live:
                self._live.discard(number)
                self._expired(number)
        if self._heap:
            self._arm(self._heap[0][0])
