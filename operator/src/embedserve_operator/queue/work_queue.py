"""Decides which resource is worked on next.

Only one worker at a time works on a key. Whatever happens meanwhile leads to one more pass, not to one pass
for each event. A failed pass is repeated after a pause that doubles up to a limit; a new event ends the
pause. Keys of low priority come when there is nothing else to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyQueue(Generic[K]):
    """Implements the rules of the queue without waiting: every method takes the time from its caller."""

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
        """Add a key because something happened to it."""
        if key in self._working:
            self._again.add(key)
            return
        self._later.pop(key, None)
        self._make_ready(key)

    def add_low_priority(self, key: K) -> None:
        """Add a key that is to be looked at after all keys to which something happened."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready:
            self._behind.setdefault(key)

    def add_later(self, key: K, due: float) -> None:
        """Add a key at a later time. A time that is known already and comes earlier is kept."""
        self._later[key] = min(due, self._later.get(key, due))

    def take(self, now: float) -> K | None:
        """Return the key that has waited longest. It counts as being worked on until `done` is called."""
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
        """Record that a pass over a key has ended."""
        self._working.discard(key)
        happened = key in self._again
        self._again.discard(key)
        if not succeeded:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            # The exponent is bounded as well, since 2.0 ** 1100 is not a number any more.
            self.add_later(key, now + min(self._first * 2.0 ** min(failures, 32), self._limit))
            return
        self._failures.pop(key, None)
        if happened:
            self._ready.setdefault(key)

    def _make_ready(self, key: K) -> None:
        self._behind.pop(key, None)
        self._ready.setdefault(key)

    def count_ready(self) -> int:
        """Return how many keys wait for a worker."""
        return len(self._ready) + len(self._behind)

    def count_later(self) -> int:
        """Return how many keys wait for a moment."""
        return len(self._later)

    def next_due(self) -> float | None:
        """Return when the earliest pause ends."""
        return min(self._later.values(), default=None)


class WorkQueue(Generic[K]):
    """Lets workers wait for the next key of a KeyQueue."""

    def __init__(self, *, first: float, limit: float) -> None:
        self._keys: KeyQueue[K] = KeyQueue(first=first, limit=limit)
        self._changed = asyncio.Event()

    def add(self, key: K) -> None:
        """Add a key because something happened to it."""
        self._keys.add(key)
        self._changed.set()

    def add_low_priority(self, key: K) -> None:
        """Add a key that is to be looked at after all keys to which something happened."""
        self._keys.add_low_priority(key)
        self._changed.set()

    def add_later(self, key: K, seconds: float) -> None:
        """Add a key after so many seconds."""
        self._keys.add_later(key, asyncio.get_running_loop().time() + seconds)

    def count_ready(self) -> int:
        """Return how many keys wait for a worker."""
        return self._keys.count_ready()

    def count_later(self) -> int:
        """Return how many keys wait for a moment."""
        return self._keys.count_later()

    async def get(self, max_wait: float) -> K | None:
        """Return the next key, or None when there was none for `max_wait` seconds.

        All other tasks get a turn first: a pass that changes nothing awaits nothing, and thousands of such passes in a
        row would keep the Lease from being renewed.
        """
        await asyncio.sleep(0)
        clock = asyncio.get_running_loop().time
        end = clock() + max_wait
        while True:
            self._changed.clear()
            key = self._keys.take(clock())
            if key is not None:
                # There may be more keys, so the other workers are woken as well.
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
        """Record that a pass over a key has ended."""
        self._keys.done(key, asyncio.get_running_loop().time(), succeeded=succeeded)
        self._changed.set()
