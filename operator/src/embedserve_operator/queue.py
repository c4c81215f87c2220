"""Which resource is worked on next.

A key is worked on by one worker at a time; what happens meanwhile leads to one more pass, not to one pass for
each event. A failed pass is repeated after a pause that doubles up to a limit; a new event ends the pause. Keys that
are only to be looked over come when there is nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyQueue(Generic[K]):
    """The rules, without waiting: every method takes the time from its caller."""

    def __init__(self, *, first: float, limit: float) -> None:
        self._first = first
        self._limit = limit
        self._ready: dict[K, None] = {}
        self._behind: dict[K, None] = {}
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._later: dict[K, float] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K) -> None:
        """Something happened to a key."""
        if key in self._working:
            self._again.add(key)
            return
        self._later.pop(key, None)
        self._make_ready(key)

    def add_behind(self, key: K) -> None:
        """A key is to be looked over, after all to which something happened."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready:
            self._behind.setdefault(key)

    def add_later(self, key: K, due: float) -> None:
        """Something is to happen to a key at a time; an earlier one that is known stays."""
        self._later[key] = min(due, self._later.get(key, due))

    def take(self, now: float) -> K | None:
        """The key that has waited longest; it counts as worked on until `done`."""
        for waited in [key for key, due in self._later.items() if due <= now]:
            del self._later[waited]
            self._make_ready(waited)
        queue = self._ready or self._behind
        key = next(iter(queue), None)
        if key is not None:
            del queue[key]
            self._later.pop(key, None)
            self._working.add(key)
        return key

    def done(self, key: K, now: float, *, succeeded: bool) -> None:
        """A pass over a key has ended."""
        self._working.discard(key)
        happened = key in self._again
        self._again.discard(key)
        if not succeeded:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            # The exponent is bounded as well: 2.0 ** 1100 would be no number any more.
            self._later[key] = now + min(self._first * 2.0 ** min(failures, 32), self._limit)
            return
        self._failures.pop(key, None)
        if happened:
            self._ready.setdefault(key)

    def _make_ready(self, key: K) -> None:
        self._behind.pop(key, None)
        self._ready.setdefault(key)

    def next_due(self) -> float | None:
        """When the earliest pause ends."""
        return min(self._later.values(), default=None)


class WorkQueue(Generic[K]):
    """A KeyQueue that workers can wait at."""

    def __init__(self, *, first: float, limit: float) -> None:
        self._keys: KeyQueue[K] = KeyQueue(first=first, limit=limit)
        self._changed = asyncio.Event()

    def add(self, key: K) -> None:
        """Something happened to a key."""
        self._keys.add(key)
        self._changed.set()

    def add_behind(self, key: K) -> None:
        """A key is to be looked over, after all to which something happened."""
        self._keys.add_behind(key)
        self._changed.set()

    def add_later(self, key: K, seconds: float) -> None:
        """Something is to happen to a key so much later."""
        self._keys.add_later(key, asyncio.get_running_loop().time() + seconds)

    async def get(self, longest: float) -> K | None:
        """The next key, or None when there was none for `longest` seconds. Everybody else has a turn first: a pass that
        changes nothing waits for nothing, and thousands of them would keep the Lease from being renewed."""
        await asyncio.sleep(0)
        clock = asyncio.get_running_loop().time
        end = clock() + longest
        while True:
            self._changed.clear()
            key = self._keys.take(clock())
            if key is not None:
                # Whoever else waits looks as well: there may be more.
                self._changed.set()
                return key
            if clock() >= end:
                return None
            due = self._keys.next_due()
            try:
                async with asyncio.timeout_at(end if due is None else min(end, due)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K, *, succeeded: bool) -> None:
        """A pass over a key has ended."""
        self._keys.done(key, asyncio.get_running_loop().time(), succeeded=succeeded)
        self._changed.set()
