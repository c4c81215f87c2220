"""Limits how many services an upgrade of the operator rolls at the same time.

Which services hold a slot is written on their Deployments; here is only what no Deployment says yet: which ones are
being written, and which ones wait for a slot.
"""

from __future__ import annotations

from collections.abc import Mapping

from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.state.upgrades import UpgradePhase, UpgradeProgress


class UpgradeSlots:
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

    def acquire(self, key: ObjectKey) -> None:
        """Take a slot until `release` is called: by then the Deployment says it, or could not be written."""
        self._waiting.pop(key, None)
        self._beginning.add(key)

    def release(self, key: ObjectKey) -> None:
        """Note that the writes of a pass have ended: from now on, the Deployment says whether the service rolls."""
        self._beginning.discard(key)

    def enqueue(self, key: ObjectKey) -> None:
        """Let a service wait for a slot, behind all that wait already."""
        self._waiting.setdefault(key)

    def dequeue(self, key: ObjectKey) -> None:
        """Let a service wait no longer."""
        self._waiting.pop(key, None)

    def count_waiting(self) -> int:
        """Return how many services wait for a slot."""
        return len(self._waiting)

    def take_due(self, phases: Mapping[ObjectKey, UpgradePhase]) -> list[ObjectKey]:
        """Return the waiting services that are to be looked at again: as many as there are free slots, or all when it
        has just become known that one failed. They no longer wait unless they are enqueued again.
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
