"""Decides everything about one resource from its observed state."""

from embedserve_operator.plan.actions import (
    PodLabel,
    PodMessage,
    ReplacementTime,
    ReplicasOwnershipTransfer,
    SelfCheckRequest,
)
from embedserve_operator.plan.plan import Plan, SpecRefusal
from embedserve_operator.plan.planner import make_plan

__all__ = [
    "Plan",
    "PodLabel",
    "PodMessage",
    "ReplacementTime",
    "ReplicasOwnershipTransfer",
    "SelfCheckRequest",
    "SpecRefusal",
    "make_plan",
]
