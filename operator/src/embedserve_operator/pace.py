"""How often resources are looked at again: the more there are, the less often each."""

from __future__ import annotations

from collections.abc import Callable

from embedserve_operator.world import Key


class Pace:
    """At least `pause` seconds between two looks at one resource, and at most `rate` looks a second in all."""

    def __init__(self, clock: Callable[[], float], *, pause: float, rate: float) -> None:
        self._clock = clock
        self._pause = pause
        self._rate = rate
        self._looked: dict[Key, float] = {}

    def due_in(self, key: Key) -> float:
        """Seconds until a resource may be looked at; 0 when it may be now."""
        last = self._looked.get(key)
        return 0.0 if last is None else max(0.0, last + self._between() - self._clock())

    def look(self, key: Key) -> float:
        """A resource is looked at now; returns after how many seconds it may be again."""
        self._looked[key] = self._clock()
        return self._between()

    def forget(self, key: Key) -> None:
        """There is nothing to look at any more."""
        self._looked.pop(key, None)

    def _between(self) -> float:
        return max(self._pause, len(self._looked) / self._rate)
