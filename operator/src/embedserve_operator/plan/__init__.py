"""Decides everything about one resource from its observed state."""

from embedserve_operator.plan.plan import (
    Plan,
    PlannedCondition,
    PlannedStatus,
    PodLabel,
    PodMessage,
    ReplacementTime,
    ReplicasHandOver,
    SelfCheckRequest,
)
from embedserve_operator.plan.planner import make_plan

__all__ = [
    "Plan",
    "PlannedCondition",
    "PlannedStatus",
    "PodLabel",
    "PodMessage",
    "ReplacementTime",
    "ReplicasHandOver",
    "SelfCheckRequest",
    "make_plan",
]
