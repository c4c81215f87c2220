"""Decides what is written on Deployments about when they were replaced.

How long an earlier model is kept must not hang on the published status, which anybody may edit and an older operator
may not be able to read. So the time is written on the Deployment before the Service leads elsewhere, and goes only
when the Service was seen to lead to it again: whenever the operator ends, a Deployment that has served says so.
"""

from __future__ import annotations

from embedserve_operator.api.times import format_moment, parse_moment
from embedserve_operator.plan.actions import ReplacementTime
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.state.observed import ObservedState


def plan_replacement_times(observed: ObservedState, rollout: Rollout) -> tuple[ReplacementTime, ...]:
    """Return the Deployments whose annotation is not as it should be."""
    times = []
    for retained in rollout.retained:
        deployment = observed.find_deployment(retained.previous.revision)
        if deployment is not None and parse_moment(deployment.replaced_at) is None:
            times.append(ReplacementTime(deployment.name, format_moment(retained.previous.replaced_at)))
    serving = observed.find_deployment(rollout.serving)
    if serving is not None and serving.replaced_at and observed.serving_revision == rollout.serving:
        times.append(ReplacementTime(serving.name, None))
    return tuple(times)
