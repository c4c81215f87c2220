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
    """Implements the rules of the queue without waiting: every method takes the time from its caller.

    `base_delay` and `max_delay` bound the pause after a failure, in seconds.
    """

    def __init__(self, *, base_delay: float, max_delay: float) -> None:
        self._base_delay = base_delay
        self._max_delay = max_delay
        self._ready: dict[K, None] = {}
        self._low_priority: dict[K, None] = {}
        self._processing: set[K] = set()
        self._dirty: set[K] = set()
        """Keys that were added while they are processed: they need one more pass."""
        self._delayed: dict[K, float] = {}
        self._failures: dict[K, int] = {}

    def add(self, key: K) -> None:
        """Add a key because something happened to it."""
        if key in self._processing:
            self._dirty.add(key)
            return
        self._delayed.pop(key, None)
        self._make_ready(key)

    def add_low_priority(self, key: K) -> None:
        """Add a key that is processed after all keys to which something happened."""
        if key in self._processing:
            self._dirty.add(key)
        elif key not in self._ready:
            self._low_priority.setdefault(key)

    def add_at(self, key: K, due: float) -> None:
        """Add a key at the time `due`; of two times the earlier one counts."""
        self._delayed[key] = min(due, self._delayed.get(key, due))

    def get(self, now: float) -> K | None:
        """Return the key that has waited longest. It counts as being processed until `done` is called."""
        for waited in [key for key, due in self._delayed.items() if due <= now]:
            del self._delayed[waited]
            self._make_ready(waited)
        queue = self._ready or self._low_priority
        key = next(iter(queue), None)
        if key is not None:
            del queue[key]
            self._delayed.pop(key, None)
            self._processing.add(key)
        return key

    def done(self, key: K, now: float, *, succeeded: bool) -> None:
        """Record that a pass over a key has ended."""
        self._processing.discard(key)
        happened = key in self._dirty
        self._dirty.discard(key)
        if not succeeded:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            # The exponent is bounded as well: 2.0 ** 1100 raises OverflowError.
            self.add_at(key, now + min(self._base_delay * 2.0 ** min(failures, 32), self._max_delay))
            return
        self._failures.pop(key, None)
        if happened:
            self._ready.setdefault(key)

    def _make_ready(self, key: K) -> None:
        self._low_priority.pop(key, None)
        self._ready.setdefault(key)

    def count_ready(self) -> int:
        """Return how many keys wait for a worker."""
        return len(self._ready) + len(self._low_priority)

    def count_delayed(self) -> int:
        """Return how many keys wait for a time at which they are due."""
        return len(self._delayed)

    def next_due(self) -> float | None:
        """Return when the earliest pause ends."""
        return min(self._delayed.values(), default=None)


class WorkQueue(Generic[K]):
    """Lets workers wait for the next key of a KeyQueue."""

    def __init__(self, *, base_delay: float, max_delay: float) -> None:
        self._keys: KeyQueue[K] = KeyQueue(base_delay=base_delay, max_delay=max_delay)
        self._changed = asyncio.Event()

    def add(self, key: K) -> None:
        """Add a key because something happened to it."""
        self._keys.add(key)
        self._changed.set()

    def add_low_priority(self, key: K) -> None:
        """Add a key that is processed after all keys to which something happened."""
        self._keys.add_low_priority(key)
        self._changed.set()

    def add_after(self, key: K, delay: float) -> None:
        """Add a key after `delay` seconds."""
        self._keys.add_at(key, asyncio.get_running_loop().time() + delay)

    def count_ready(self) -> int:
        """Return how many keys wait for a worker."""
        return self._keys.count_ready()

    def count_delayed(self) -> int:
        """Return how many keys wait for a time at which they are due."""
        return self._keys.count_delayed()

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
            key = self._keys.get(clock())
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
