"""Builds the whole status that a pass publishes: what is served, and how far that is from what the
manifest asks for.
"""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.api.status import HardwareStatus
from embedserve_operator.manifests.placement import build_node_requirements
from embedserve_operator.manifests.runtime_config import describe_source
from embedserve_operator.manifests.service import format_url as service_url
from embedserve_operator.plan import conditions
from embedserve_operator.plan.decision import Decision
from embedserve_operator.plan.failures import (
    describe_insufficient_resources,
    find_failed_self_check,
    find_mixed_spaces,
    find_worst_failure,
)
from embedserve_operator.plan.fetch_progress import summarize_progress
from embedserve_operator.plan.placement import count_matching_nodes, find_placement_failure
from embedserve_operator.plan.plan import PlannedStatus
from embedserve_operator.plan.scaling import (
    build_autoscaling_status,
    build_scaling_condition,
    choose_replicas,
    is_at_maximum,
    plan_frozen_replicas,
)
from embedserve_operator.plan.serving_status import build_rollout_status, build_serving_status
from embedserve_operator.plan.upgrade import build_upgrade_conditions
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.pods import FetchingPod, PodState


def build_status_report(decision: Decision, asked: tuple[FetchingPod, ...]) -> PlannedStatus:
    """Return the status. `asked` are the pods that can say how far the fetch has come."""
    inputs, rollout, refused = decision.inputs, decision.rollout, decision.withheld
    observed, spec, settings = inputs.observed, inputs.spec, inputs.settings
    desired, preparation = decision.desired, decision.preparation
    pods = tuple(
        pod
        for pod in observed.list_pods(desired.revision)
        if pod.template_hash == desired.template_hash and pod.phase != "Terminating"
    )
    condition_inputs = conditions.ConditionInputs(
        rollout=rollout,
        refused=refused,
        replicas=desired.replicas,
        serving_replicas=_choose_serving_replicas(decision),
        is_suspended=spec.suspend,
        is_autoscaled=spec.autoscaling is not None,
        serving=observed.find_deployment(rollout.serving),
        pods=pods,
        failure=_find_failure(decision, pods),
        activity=preparation.activity,
        claim_failure=preparation.claim_failure,
        held_url=service_url(observed.resource, rollout.desired_space) if rollout.state == "Held" else "",
    )
    source = None if rollout.is_waiting else describe_source(spec.model.source)
    hardware = HardwareStatus(
        class_=spec.hardware.class_,
        matching_nodes=count_matching_nodes(build_node_requirements(spec, settings), observed.cluster),
    )
    scaling = build_scaling_condition(observed, spec, settings, rollout.serving)
    said = (
        *conditions.build_conditions(condition_inputs),
        *((scaling,) if scaling is not None else ()),
        *build_upgrade_conditions(decision.upgrade),
    )
    found = build_serving_status(inputs, rollout, source, hardware, said)
    progress = summarize_progress(asked)
    return replace(
        found,
        model=found.model.model_copy(update={"fetching": progress}) if found.model is not None else None,
        rollout=build_rollout_status(inputs, refused or rollout),
        fetch=preparation.fetch,
        conversion=preparation.conversion,
        autoscaling=build_autoscaling_status(observed, spec, rollout.serving),
        is_at_maximum=is_at_maximum(observed, rollout.serving),
    )


def _choose_serving_replicas(decision: Decision) -> int:
    """Return the number of pods that the serving revision should run."""
    observed, rollout, serving = decision.inputs.observed, decision.rollout, decision.serving
    there = observed.find_deployment(rollout.serving)
    if not rollout.is_waiting or there is None:
        return decision.desired.replicas
    if serving is not None:
        return choose_replicas(observed, serving.spec, rollout.serving)
    if rollout.is_serving_broken or decision.preparation.must_clear:
        # It is scaled down to make room: none of its pods should run, and yet nobody is served without one.
        return max(1, there.desired_replicas)
    claim = plan_frozen_replicas(observed, decision.inputs.spec, rollout.serving)
    return there.desired_replicas if claim is None else claim.replicas


def _find_failure(decision: Decision, pods: tuple[PodState, ...]) -> Failure | None:
    """Return what keeps the desired revision from serving. `pods` are those of its present pod template."""
    inputs, rollout, desired = decision.inputs, decision.rollout, decision.desired
    observed, preparation = inputs.observed, decision.preparation
    if preparation.claim_failure is not None and not rollout.is_complete and desired.replicas > 0:
        return preparation.claim_failure
    if (
        preparation.failure is None
        and preparation.is_ready
        and not rollout.is_complete
        and desired.replicas > 0
    ):
        placement_failure = find_placement_failure(inputs.spec, inputs.settings, observed.cluster, pods)
        found = find_mixed_spaces(inputs, rollout) or find_worst_failure(
            observed.find_deployment(rollout.desired), pods, placement_failure
        )
        return describe_insufficient_resources(found, rollout)
    return find_failed_self_check(pods) if rollout.state == "Checking" else preparation.failure
