"""World -> Plan: every decision about one resource. Pure: no client, no clock, no log."""

from embedserve_operator.plan.make import make_plan
from embedserve_operator.plan.outcome import (
    HandOver,
    Notice,
    Plan,
    PlannedCondition,
    PlannedStatus,
    PodLabel,
    Question,
)

__all__ = [
    "HandOver",
    "Notice",
    "Plan",
    "PlannedCondition",
    "PlannedStatus",
    "PodLabel",
    "Question",
    "make_plan",
]
