"""Is the only writer of the status: it adds times to the conditions, and publishes only what is
different.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from embedserve_operator.api.status import AutoscalingStatus, Condition, EmbeddingServiceStatus
from embedserve_operator.apply.results import ApplyFailure
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.errors import ApiError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.kinds import RESOURCE
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.plan import PlannedCondition, PlannedStatus
from embedserve_operator.queue.throttle import Throttle
from embedserve_operator.state.resource import Resource
from embedserve_operator.status.events import build_events

log = logging.getLogger(__name__)

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_AT_MAXIMUM_AFTER = timedelta(minutes=2)

_PROGRESS_PAUSE_SECONDS = 2.0
_MAX_PROGRESS_RATE = 100.0
"""How often statuses are written that only count pods again, per second in total.

A pod, its Deployment and what the pod reports become ready within a second or two, in three events: one
write is enough.
"""


class StatusPublisher:
    """Writes the statuses of resources, and the events that tell what is new in them."""

    def __init__(self, kube: KubeClient, objects: ObjectCache, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._kube = kube
        self._objects = objects
        self._throttle = Throttle(clock, pause=_PROGRESS_PAUSE_SECONDS, rate=_MAX_PROGRESS_RATE)

    async def publish(
        self, planned: PlannedStatus, failure: ApplyFailure | None, *, resource: Resource, now: datetime
    ) -> float:
        """Write the status unless it is published already; return 0.

        Mere progress waits until the throttle lets it pass: then nothing is written, and the seconds until
        it may be are returned.
        """
        status = add_times(add_apply_failure(planned, failure), resource, now)
        if status == resource.status:
            return 0.0
        if is_only_progress(resource.status, status):
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


def is_only_progress(before: EmbeddingServiceStatus, after: EmbeddingServiceStatus) -> bool:
    """Return whether the same conditions hold for the same reasons, so that only counts of pods and messages
    differ.
    """
    return _drop_details(before) == _drop_details(after)


def _drop_details(status: EmbeddingServiceStatus) -> EmbeddingServiceStatus:
    conditions = tuple(condition.model_copy(update={"message": ""}) for condition in status.conditions)
    return status.model_copy(update={"replicas": 0, "ready_replicas": 0, "conditions": conditions})


def add_apply_failure(planned: PlannedStatus, failure: ApplyFailure | None) -> PlannedStatus:
    """Return the status for a child that could not be written: what is served is reported as before, and the
    failure says what is in the way.
    """
    if failure is None:
        return planned
    kept = [
        PlannedCondition("Ready", "False", failure.reason, failure.message)
        if (condition.type, condition.status) == ("Ready", "False")
        else condition
        for condition in planned.conditions
        if condition.type not in ("Reconciling", "Stalled")
    ]
    stalled = next((one for one in planned.conditions if one.type == "Stalled"), None)
    if stalled is None:
        found = PlannedCondition(
            "Reconciling" if failure.is_transient else "Stalled", "True", failure.reason, failure.message
        )
    else:
        said = (
            f"{stalled.message}. The other changes of the manifest fail: {failure.reason}: {failure.message}"
        )
        found = replace(stalled, message=said)
    return replace(planned, conditions=(*kept, found))


def add_times(planned: PlannedStatus, resource: Resource, now: datetime) -> EmbeddingServiceStatus:
    """Return the status with times: the time of a condition moves only when its status does."""
    autoscaling = _add_maximum_time(planned, resource, now)
    conditions = (*planned.conditions, *_build_at_maximum(autoscaling, now))
    return EmbeddingServiceStatus(
        observed_generation=resource.generation,
        conditions=tuple(_add_transition_time(condition, resource, now) for condition in conditions),
        replicas=planned.replicas,
        ready_replicas=planned.ready_replicas,
        selector=planned.selector,
        endpoint=planned.endpoint,
        vector_space=planned.vector_space,
        model=planned.model,
        fetch=planned.fetch,
        conversion=planned.conversion,
        rollout=planned.rollout,
        hardware=planned.hardware,
        autoscaling=autoscaling,
    )


def _build_at_maximum(autoscaling: AutoscalingStatus | None, now: datetime) -> tuple[PlannedCondition, ...]:
    """Return the condition that the maximum is reached, only after a while: a short burst is what the limit is
    for.
    """
    if autoscaling is None or autoscaling.at_maximum_since is None:
        return ()
    if (
        now - datetime.strptime(autoscaling.at_maximum_since, _TIME_FORMAT).replace(tzinfo=UTC)
        < _AT_MAXIMUM_AFTER
    ):
        return ()
    said = (
        f"{autoscaling.metric} asks for more than the {autoscaling.current_replicas} pods that "
        "spec.autoscaling.maxReplicas allows; raise it, or let requests wait"
    )
    return (PlannedCondition("AtMaximum", "True", "MaxReplicas", said),)


def _add_maximum_time(planned: PlannedStatus, resource: Resource, now: datetime) -> AutoscalingStatus | None:
    """Return what the autoscaler says, with the time since when it has wanted more pods than it is allowed to
    have.
    """
    if planned.autoscaling is None or not planned.is_at_maximum:
        return planned.autoscaling
    before = resource.status.autoscaling
    since = before.at_maximum_since if before is not None else None
    return planned.autoscaling.model_copy(update={"at_maximum_since": since or now.strftime(_TIME_FORMAT)})


def _add_transition_time(planned: PlannedCondition, resource: Resource, now: datetime) -> Condition:
    before = resource.find_condition(planned.type)
    unchanged = before is not None and before.status == planned.status
    return Condition(
        type=planned.type,
        status=planned.status,
        reason=planned.reason,
        message=planned.message,
        last_transition_time=before.last_transition_time
        if before is not None and unchanged
        else now.strftime(_TIME_FORMAT),
        observed_generation=resource.generation,
    )
