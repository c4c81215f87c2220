"""Knows whose turn it is when an upgrade of the operator replaces the pods of services.

Which services roll is written on their Deployments; here is only what no Deployment says yet: which ones are being
written, and which ones wait.
"""

from __future__ import annotations

from collections.abc import Mapping

from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.state.upgrades import UpgradePhase, UpgradeProgress


class UpgradeTurns:
    """Counts the services that roll, and says which of the waiting ones may be looked at again."""

    def __init__(self, max_concurrent: int) -> None:
        self._max_concurrent = max_concurrent
        self._beginning: set[ObjectKey] = set()
        self._waiting: dict[ObjectKey, None] = {}
        self._is_stopped = False

    def count_others(self, key: ObjectKey, phases: Mapping[ObjectKey, UpgradePhase]) -> UpgradeProgress:
        """Return how far an upgrade has come with all services but one. `phases` is what the Deployments say."""
        failed = {service for service, phase in phases.items() if phase == "Failed"} - {key}
        rolling = ({*phases} | self._beginning) - failed - {key}
        return UpgradeProgress(len(rolling), len(failed))

    def begin(self, key: ObjectKey) -> None:
        """Take a turn, until `end` is called: by then the Deployment says it, or could not be written."""
        self._waiting.pop(key, None)
        self._beginning.add(key)

    def end(self, key: ObjectKey) -> None:
        """Note that the writes of a pass have ended."""
        self._beginning.discard(key)

    def wait(self, key: ObjectKey) -> None:
        """Wait for a turn, behind all that wait already."""
        self._waiting.setdefault(key)

    def leave(self, key: ObjectKey) -> None:
        """Wait no longer."""
        self._waiting.pop(key, None)

    def count_waiting(self) -> int:
        """Return how many services wait for their turn."""
        return len(self._waiting)

    def take_due(self, phases: Mapping[ObjectKey, UpgradePhase]) -> list[ObjectKey]:
        """Return the waiting services that are to be looked at again: as many as there are free turns, or all when it
        has just become known that one failed. They no longer wait unless they say so again.
        """
        was_stopped, self._is_stopped = self._is_stopped, "Failed" in phases.values()
        if self._is_stopped:
            count = 0 if was_stopped else len(self._waiting)
        else:
            count = max(0, self._max_concurrent - len({*phases} | self._beginning))
        due = list(self._waiting)[:count]
        for key in due:
            del self._waiting[key]
        return due
