"""Remembers why the pods of Jobs cannot be created.

A Deployment says that in its status, a Job only by events, so those are read for a Job that stays without pods.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from embedserve_operator.errors import ApiError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.state.jobs import JobState

log = logging.getLogger(__name__)

_FAILED_CREATE = "FailedCreate"
"""The reason of the events by which a Job's controller says that it could not create a pod."""


class JobEvents:
    """The messages of events about the Jobs of each resource that have no pods."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self._problems: dict[ObjectKey, dict[str, str]] = {}

    def get_creation_problems(self, key: ObjectKey) -> Mapping[str, str]:
        """Return why pods of Jobs cannot be created, by the UID of the Job."""
        return self._problems.get(key, {})

    def forget(self, key: ObjectKey) -> None:
        """Forget what is known about the Jobs of a resource."""
        self._problems.pop(key, None)

    async def refresh(self, key: ObjectKey, jobs: Sequence[JobState]) -> bool:
        """Read the events of these Jobs of a resource; return whether they say something new."""
        problems: dict[str, str] = {}
        for job in jobs:
            try:
                event = await self._kube.find_last_event(key.namespace, job.uid, _FAILED_CREATE)
            except ApiError as error:
                log.warning("%s: the events of Job %s could not be read: %s", key, job.name, error)
                return False
            if event is not None and event.message:
                problems[job.uid] = event.message
        changed = problems != self._problems.get(key, {})
        self._problems[key] = problems
        return changed
