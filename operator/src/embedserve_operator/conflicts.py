"""Whether a field that another manager owns is taken back, or the conflict is reported.

A manager that *updates* (kubectl scale, edit, a script) has acted once: its change is drift and is put right. A manager
that *applies* (a GitOps tool, another operator) states what it wants and will state it again; overruling it would be a
fight without end. So would be one with a controller that updates again and again, which shows by its repeating.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Hashable

_MANAGER = re.compile(r'conflicts? with "([^"]+)"(?: with subresource "[^"]+")?( using)?')
_REPEATS = 3
_WINDOW_SECONDS = 600.0
_MOST_KEPT = 4096


def applying_managers(message: str, ours: frozenset[str]) -> tuple[str, ...]:
    """Managers other than ours that applied the fields, from the API server's words: it names the API version only
    of those that updated."""
    found = {name for name, updated in _MANAGER.findall(message) if not updated and name not in ours}
    return tuple(sorted(found))


class Overrulings:
    """Remembers how often fields of an object were taken back lately."""

    def __init__(self) -> None:
        self._times: dict[Hashable, deque[float]] = {}

    def may_overrule(self, key: Hashable, now: float) -> bool:
        """Whether to take the fields back once more; counts it when so."""
        times = self._times.pop(key, deque(maxlen=_REPEATS))
        while times and now - times[0] > _WINDOW_SECONDS:
            times.popleft()
        allowed = len(times) < _REPEATS
        if allowed:
            times.append(now)
        self._times[key] = times
        if len(self._times) > _MOST_KEPT:
            self._times.pop(next(iter(self._times)))
        return allowed
