"""The one writer of the status: puts times to the conditions and publishes only what is different."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime

from embedserve_operator.api.status import Condition, EmbeddingServiceStatus
from embedserve_operator.apply import Refusal
from embedserve_operator.errors import ApiError
from embedserve_operator.events import events_of
from embedserve_operator.kinds import RESOURCE
from embedserve_operator.kube import Kube
from embedserve_operator.plan import PlannedCondition, PlannedStatus
from embedserve_operator.store import Store
from embedserve_operator.world import Resource

log = logging.getLogger(__name__)


async def publish(
    planned: PlannedStatus,
    refusal: Refusal | None,
    *,
    resource: Resource,
    now: datetime,
    kube: Kube,
    store: Store,
) -> None:
    """Write the status unless it stands there already."""
    status = stamped(with_refusal(planned, refusal), resource, now)
    if status == resource.status:
        return
    store.put(RESOURCE, await kube.apply_status(resource.key, resource.uid, status.as_wire()))
    for event in events_of(resource, status, now):
        try:
            await kube.create_event(event)
        except ApiError as error:
            # An event is a courtesy; the conditions say the same.
            log.warning("%s: an event could not be recorded: %s", resource.key, error)


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
    return EmbeddingServiceStatus(
        observed_generation=resource.generation,
        conditions=tuple(_stamp(condition, resource, now) for condition in planned.conditions),
        replicas=planned.replicas,
        ready_replicas=planned.ready_replicas,
        selector=planned.selector,
        endpoint=planned.endpoint,
        vector_space=planned.vector_space,
        model=planned.model,
        hardware=planned.hardware,
    )


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
        else now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        observed_generation=resource.generation,
    )
