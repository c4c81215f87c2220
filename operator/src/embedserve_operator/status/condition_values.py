"""Defines a condition before it has its times, and adds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from embedserve_operator.api.status import Condition
from embedserve_operator.api.times import format_moment
from embedserve_operator.state.resource import Resource


@dataclass(frozen=True, slots=True)
class ConditionValue:
    """A condition without its times."""

    type: Literal[
        "Ready",
        "Reconciling",
        "Stalled",
        "ScalingActive",
        "AtMaximum",
        "PoolingGuessed",
        "SelfCheckFailed",
        "Upgrading",
    ]
    status: Literal["True", "False"]
    reason: str
    message: str


def add_times(values: Iterable[ConditionValue], resource: Resource, now: int) -> tuple[Condition, ...]:
    """Return the conditions with their times: the time of a condition moves only when its status does."""
    return tuple(_add_transition_time(value, resource, now) for value in values)


def _add_transition_time(value: ConditionValue, resource: Resource, now: int) -> Condition:
    published = resource.find_condition(value.type)
    is_unchanged = published is not None and published.status == value.status
    return Condition(
        type=value.type,
        status=value.status,
        reason=value.reason,
        message=value.message,
        last_transition_time=published.last_transition_time
        if published is not None and is_unchanged
        else format_moment(now),
        observed_generation=resource.generation,
    )
