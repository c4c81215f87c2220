"""Limits how often resources are looked at again: the more there are, the less often each one."""

from __future__ import annotations

from collections.abc import Callable

from embedserve_operator.kube.references import ObjectKey


class Throttle:
    """Keeps at least `pause` seconds between two looks at one resource, and allows at most `rate` looks a
    second in total.
    """

    def __init__(self, monotonic: Callable[[], float], *, pause: float, rate: float) -> None:
        self._monotonic = monotonic
        self._pause = pause
        self._rate = rate
        self._recorded_at: dict[ObjectKey, float] = {}

    def seconds_until_due(self, key: ObjectKey) -> float:
        """Return the seconds until a resource may be looked at; 0 when it may be looked at now."""
        last = self._recorded_at.get(key)
        return 0.0 if last is None else max(0.0, last + self._between() - self._monotonic())

    def record(self, key: ObjectKey) -> float:
        """Record that a resource is looked at now; return the seconds until it may be looked at again."""
        self._recorded_at[key] = self._monotonic()
        return self._between()

    def forget(self, key: ObjectKey) -> None:
        """Forget a resource that no longer has anything to be looked at."""
        self._recorded_at.pop(key, None)

    def _between(self) -> float:
        return max(self._pause, len(self._recorded_at) / self._rate)
