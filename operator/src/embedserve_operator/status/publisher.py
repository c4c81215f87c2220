"""Publishes statuses: it is their only writer, and writes only what is different."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from embedserve_operator.api.status import EmbeddingServiceStatus
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.errors import ApiError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.kinds import RESOURCE
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.queue.throttle import Throttle
from embedserve_operator.state.resource import Resource
from embedserve_operator.status.events import build_events

log = logging.getLogger(__name__)

_PROGRESS_WRITE_INTERVAL_SECONDS = 2.0
"""The time between two writes of one status that differ only in progress: a pod, its Deployment and what the pod
reports become ready within a second or two, in three events, for which one write is enough.
"""
_MAX_PROGRESS_WRITES_PER_SECOND = 100.0
"""The greatest number of such writes per second, of all statuses together."""


class StatusPublisher:
    """Writes the statuses of resources, and the events that tell what is new in them.

    `monotonic` returns seconds, as `Clock.monotonic` does.
    """

    def __init__(self, kube: KubeClient, objects: ObjectCache, monotonic: Callable[[], float]) -> None:
        self._kube = kube
        self._objects = objects
        self._throttle = Throttle(
            monotonic, pause=_PROGRESS_WRITE_INTERVAL_SECONDS, rate=_MAX_PROGRESS_WRITES_PER_SECOND
        )

    async def publish(self, status: EmbeddingServiceStatus, *, resource: Resource, now: datetime) -> float:
        """Write the status unless it is published already; return 0.

        One that differs only in progress waits until the throttle lets it pass: then nothing is written, and the
        seconds until it may be are returned.
        """
        if status == resource.status:
            return 0.0
        if differs_only_in_progress(resource.status, status):
            seconds_until_due = self._throttle.seconds_until_due(resource.key)
            if seconds_until_due > 0.0:
                return seconds_until_due
        self._throttle.record(resource.key)
        written = await self._kube.apply_status(resource.key, resource.uid, status.as_wire())
        self._objects.put(RESOURCE, written)
        for event in build_events(resource, status, now):
            try:
                await self._kube.create_event(event)
            except ApiError as error:
                # Events are a courtesy; the conditions say the same.
                log.warning("%s: an event could not be recorded: %s", resource.key, error)
        return 0.0

    def forget(self, key: ObjectKey) -> None:
        """Forget a resource that is gone."""
        self._throttle.forget(key)


def differs_only_in_progress(before: EmbeddingServiceStatus, after: EmbeddingServiceStatus) -> bool:
    """Return whether the same conditions hold for the same reasons, so that only counts of pods and messages
    differ.
    """
    return _drop_progress(before) == _drop_progress(after)


def _drop_progress(status: EmbeddingServiceStatus) -> EmbeddingServiceStatus:
    """Return a status without its counts of pods and the messages of its conditions."""
    conditions = tuple(condition.model_copy(update={"message": ""}) for condition in status.conditions)
    return status.model_copy(update={"replicas": 0, "ready_replicas": 0, "conditions": conditions})
