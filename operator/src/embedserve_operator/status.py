"""The one writer of the status: puts times to the conditions and publishes only what is different."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from embedserve_operator.api.status import AutoscalingStatus, Condition, EmbeddingServiceStatus
from embedserve_operator.apply import Refusal
from embedserve_operator.errors import ApiError
from embedserve_operator.events import events_of
from embedserve_operator.kinds import RESOURCE
from embedserve_operator.kube import Kube
from embedserve_operator.pace import Pace
from embedserve_operator.plan import PlannedCondition, PlannedStatus
from embedserve_operator.store import Store
from embedserve_operator.world import Resource

log = logging.getLogger(__name__)

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_AT_MAXIMUM_AFTER = timedelta(minutes=2)


async def publish(
    planned: PlannedStatus,
    refusal: Refusal | None,
    *,
    resource: Resource,
    now: datetime,
    kube: Kube,
    store: Store,
    pace: Pace,
) -> float:
    """Write the status unless it stands there already. Mere progress waits until the pace lets it: then nothing is
    written, and after so many seconds it may be."""
    status = stamped(with_refusal(planned, refusal), resource, now)
    if status == resource.status:
        return 0.0
    if tells_only_progress(resource.status, status):
        due_in = pace.due_in(resource.key)
        if due_in > 0.0:
            return due_in
    pace.look(resource.key)
    store.put(RESOURCE, await kube.apply_status(resource.key, resource.uid, status.as_wire()))
    for event in events_of(resource, status, now):
        try:
            await kube.create_event(event)
        except ApiError as error:
            # An event is a courtesy; the conditions say the same.
            log.warning("%s: an event could not be recorded: %s", resource.key, error)
    return 0.0


def tells_only_progress(before: EmbeddingServiceStatus, after: EmbeddingServiceStatus) -> bool:
    """Whether the same conditions hold for the same reasons, and only pods are counted and words are said anew."""
    return _outline(before) == _outline(after)


def _outline(status: EmbeddingServiceStatus) -> EmbeddingServiceStatus:
    conditions = tuple(condition.model_copy(update={"message": ""}) for condition in status.conditions)
    return status.model_copy(update={"replicas": 0, "ready_replicas": 0, "conditions": conditions})


def with_refusal(planned: PlannedStatus, refusal: Refusal | None) -> PlannedStatus:
    """The status when a child could not be written: what is served stays said, the way forward is blocked."""
    if refusal is None:
        return planned
    found = [
        PlannedCondition("Ready", "False", refusal.reason, refusal.message)
        if condition.status == "False"
        else condition
        for condition in planned.conditions
        if condition.type == "Ready"
    ]
    # Tried again with growing pauses, since quotas, webhooks and other owners' objects come and go.
    found.append(PlannedCondition("Reconciling", "True", refusal.reason, refusal.message))
    return replace(planned, conditions=tuple(found))


def stamped(planned: PlannedStatus, resource: Resource, now: datetime) -> EmbeddingServiceStatus:
    """The status with times: that of a condition moves only when its status does."""
    autoscaling = _since(planned, resource, now)
    conditions = (*planned.conditions, *_at_maximum(autoscaling, now))
    return EmbeddingServiceStatus(
        observed_generation=resource.generation,
        conditions=tuple(_stamp(condition, resource, now) for condition in conditions),
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


def _at_maximum(autoscaling: AutoscalingStatus | None, now: datetime) -> tuple[PlannedCondition, ...]:
    """Said only after a while: a short burst is what the limit is for."""
    if autoscaling is None or autoscaling.at_maximum_since is None:
        return ()
    if now - datetime.strptime(autoscaling.at_maximum_since, _TIME).replace(tzinfo=UTC) < _AT_MAXIMUM_AFTER:
        return ()
    said = (
        f"{autoscaling.metric} asks for more than the {autoscaling.current_replicas} pods that "
        "spec.autoscaling.maxReplicas allows; raise it, or let requests wait"
    )
    return (PlannedCondition("AtMaximum", "True", "MaxReplicas", said),)


def _since(planned: PlannedStatus, resource: Resource, now: datetime) -> AutoscalingStatus | None:
    """What the autoscaler says, with the time since when it wants more than it may."""
    if planned.autoscaling is None or not planned.at_maximum:
        return planned.autoscaling
    before = resource.status.autoscaling
    since = before.at_maximum_since if before is not None else None
    return planned.autoscaling.model_copy(update={"at_maximum_since": since or now.strftime(_TIME)})


def _stamp(planned: PlannedCondition, resource: Resource, now: datetime) -> Condition:
    before = resource.condition(planned.type)
    unchanged = before is not None and before.status == planned.status
    return Condition(
        type=planned.type,
        status=planned.status,
        reason=planned.reason,
        message=planned.message,
        last_transition_time=before.last_transition_time
        if before is not None and unchanged
        else now.strftime(_TIME),
        observed_generation=resource.generation,
    )
