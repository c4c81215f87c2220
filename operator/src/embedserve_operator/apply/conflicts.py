"""Decides whether a field that another manager owns is taken back, or the conflict is reported.

A manager that *updates* (kubectl scale, edit, a script) has acted once: its change is drift and is undone.
A manager that *applies* (a GitOps tool, another operator) states what it wants and will state it again;
overruling it would be a fight without end. So would be one with a controller that keeps updating, which
shows by its repetition.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Hashable

_MANAGER = re.compile(r'conflicts? with "([^"]+)"(?: with subresource "[^"]+")?( using)?')
_FIELD = re.compile(r"(?::|\n-) (\.\S+)")
AUTOSCALING_MANAGER = "kube-controller-manager"
"""The field manager of the number that a HorizontalPodAutoscaler sets. Its entry outlives the autoscaler."""
_MAX_OVERRULES = 3
_WINDOW_SECONDS = 600.0
_MAX_OBJECTS = 4096


def find_applying_managers(message: str, ours: frozenset[str]) -> tuple[str, ...]:
    """Return the other managers that applied the fields, from the API server's message: it gives the API
    version only for those that updated.
    """
    managers = {name for name, updated in _MANAGER.findall(message) if not updated and name not in ours}
    return tuple(sorted(managers))


def find_managers(message: str) -> frozenset[str]:
    """Return all managers that a conflict is with."""
    return frozenset(name for name, _ in _MANAGER.findall(message))


def concerns_only_replicas(message: str) -> bool:
    """Return whether a conflict is about the number of pods and nothing else."""
    return set(_FIELD.findall(message)) == {".spec.replicas"}


class ConflictHistory:
    """Remembers how often the fields of an object have been taken back lately."""

    def __init__(self) -> None:
        self._times: dict[Hashable, deque[float]] = {}

    def may_overrule(self, key: Hashable, now: float) -> bool:
        """Return whether to take the fields back once more, and count it if so."""
        times = self._times.pop(key, deque(maxlen=_MAX_OVERRULES))
        while times and now - times[0] > _WINDOW_SECONDS:
            times.popleft()
        allowed = len(times) < _MAX_OVERRULES
        if allowed:
            times.append(now)
        self._times[key] = times
        if len(self._times) > _MAX_OBJECTS:
            self._times.pop(next(iter(self._times)))
        return allowed
