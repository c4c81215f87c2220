"""World -> Plan: every decision about one resource. Pure: no client, no clock, no log."""

from embedserve_operator.plan.make import make_plan
from embedserve_operator.plan.outcome import HandOver, Plan, PlannedCondition, PlannedStatus

__all__ = ["HandOver", "Plan", "PlannedCondition", "PlannedStatus", "make_plan"]
