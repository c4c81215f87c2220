"""Events: one for each change of a condition's reason, none for a pass that finds what was found before."""

from __future__ import annotations

from datetime import datetime

from embedserve_operator.api.status import Condition, EmbeddingServiceStatus
from embedserve_operator.api.types import API_VERSION, KIND
from embedserve_operator.plan.conditions import (
    CHECKING,
    HELD,
    PREPARING,
    PREVIOUS_SERVING,
    PROGRESSING,
    SCALED_TO_ZERO,
    SERVING,
    SUSPENDED,
)
from embedserve_operator.plan.scaling import SCALING
from embedserve_operator.wire import Manifest, short_hash
from embedserve_operator.world import Resource

_EXPECTED = frozenset(
    {CHECKING, HELD, PREPARING, PREVIOUS_SERVING, PROGRESSING, SCALED_TO_ZERO, SCALING, SERVING, SUSPENDED}
)
_LONGEST_MESSAGE = 1000


def events_of(resource: Resource, after: EmbeddingServiceStatus, now: datetime) -> list[Manifest]:
    """The events of going from the published status to `after`."""
    found: dict[str, Manifest] = {}
    for condition in after.conditions:
        before = resource.condition(condition.type)
        if before is None or (before.status, before.reason) != (condition.status, condition.reason):
            # Two conditions with one reason are one thing that happened.
            found.setdefault(condition.reason, _event(resource, condition, now))
    return list(found.values())


def _event(resource: Resource, condition: Condition, now: datetime) -> Manifest:
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    told = [resource.uid, condition.reason, condition.message, stamp]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{resource.key.name}.{short_hash(told)}",
            "namespace": resource.key.namespace,
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": resource.key.name,
            "namespace": resource.key.namespace,
            "uid": resource.uid,
        },
        "type": "Normal" if condition.reason in _EXPECTED else "Warning",
        "reason": condition.reason,
        "message": condition.message[:_LONGEST_MESSAGE],
        "source": {"component": "embedserve-operator"},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
