"""Builds events: one for each change of the reason of a condition, and none for a pass that finds
nothing new.
"""

from __future__ import annotations

from datetime import datetime

from embedserve_operator.api.status import Condition, EmbeddingServiceStatus
from embedserve_operator.api.types import API_VERSION, KIND
from embedserve_operator.kube.objects import Manifest, compute_short_hash
from embedserve_operator.state.resource import Resource
from embedserve_operator.status.autoscaling import SCALING
from embedserve_operator.status.conditions import (
    CHECKING,
    HELD,
    PREPARING,
    PREVIOUS_SERVING,
    PROGRESSING,
    SCALED_TO_ZERO,
    SERVING,
    SUSPENDED,
)
from embedserve_operator.status.upgrade import ROLLING_OUT, WAITING_FOR_TURN

_NORMAL_REASONS = frozenset(
    {
        CHECKING,
        HELD,
        PREPARING,
        PREVIOUS_SERVING,
        PROGRESSING,
        ROLLING_OUT,
        SCALED_TO_ZERO,
        SCALING,
        SERVING,
        SUSPENDED,
        WAITING_FOR_TURN,
    }
)
_MAX_MESSAGE_LENGTH = 1000


def build_events(resource: Resource, after: EmbeddingServiceStatus, now: datetime) -> list[Manifest]:
    """Return the events of the step from the published status to `after`."""
    events: dict[str, Manifest] = {}
    for condition in after.conditions:
        before = resource.find_condition(condition.type)
        if before is None or (before.status, before.reason) != (condition.status, condition.reason):
            # Two conditions with the same reason are about the same thing.
            events.setdefault(condition.reason, _build_event(resource, condition, now))
    return list(events.values())


def _build_event(resource: Resource, condition: Condition, now: datetime) -> Manifest:
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    identity = [resource.uid, condition.reason, condition.message, stamp]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{resource.key.name}.{compute_short_hash(identity)}",
            "namespace": resource.key.namespace,
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": resource.key.name,
            "namespace": resource.key.namespace,
            "uid": resource.uid,
        },
        "type": "Normal" if condition.reason in _NORMAL_REASONS else "Warning",
        "reason": condition.reason,
        "message": condition.message[:_MAX_MESSAGE_LENGTH],
        "source": {"component": "embedserve-operator"},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
