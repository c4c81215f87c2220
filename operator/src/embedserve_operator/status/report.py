"""Builds the status that a pass publishes, after the plan was carried out: from what was observed, what was decided
about it, and what could not be written.
"""

from __future__ import annotations

from embedserve_operator.api.status import EmbeddingServiceStatus, Endpoint, HardwareStatus, ModelStatus
from embedserve_operator.apply.results import ApplyFailure
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.manifests import service
from embedserve_operator.manifests.metadata import format_selector
from embedserve_operator.manifests.placement import build_node_requirements
from embedserve_operator.plan.decision import Decision
from embedserve_operator.plan.failures import (
    describe_insufficient_resources,
    find_failed_self_check,
    find_mixed_spaces,
    find_worst_failure,
)
from embedserve_operator.plan.fetch_progress import summarize_progress
from embedserve_operator.plan.placement import count_matching_nodes, find_placement_failure
from embedserve_operator.plan.plan import Plan, SpecRefusal
from embedserve_operator.plan.scaling import choose_replicas, plan_frozen_replicas
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.pods import PodState
from embedserve_operator.status.autoscaling import (
    build_autoscaling_status,
    build_maximum_conditions,
    build_scaling_conditions,
)
from embedserve_operator.status.condition_values import ConditionValue, add_times
from embedserve_operator.status.conditions import (
    ConditionInputs,
    build_conditions,
    build_invalid_spec_conditions,
    build_pooling_conditions,
    build_refused_conditions,
    build_self_check_conditions,
)
from embedserve_operator.status.serving import (
    build_model_status,
    build_rollout_status,
    build_vector_space,
)
from embedserve_operator.status.upgrade import build_upgrade_conditions


def build_status(
    plan: Plan, observed: ObservedState, failure: ApplyFailure | None = None
) -> EmbeddingServiceStatus:
    """Return the status after a pass. `failure` is what could not be written."""
    if isinstance(plan.outcome, Decision):
        return _report_decision(plan.outcome, plan, failure)
    if isinstance(plan.outcome, SpecRefusal):
        return _report_refusal(plan.outcome, observed)
    problem = observed.resource.problem
    return _keep_published_status(observed, build_invalid_spec_conditions(problem))


def _report_refusal(refusal: SpecRefusal, observed: ObservedState) -> EmbeddingServiceStatus:
    """Return the status of a spec that is not carried out: that of what serves, with the reason of the refusal."""
    serving = observed.find_deployment(observed.serving_revision or "")
    status = _keep_published_status(observed, build_refused_conditions(refusal.failure, serving))
    if refusal.blocked_change is None:
        return status
    rollout = build_rollout_status(refusal.blocked_change.inputs, refusal.blocked_change.rollout)
    return status.model_copy(update={"rollout": rollout})


def _keep_published_status(
    observed: ObservedState, conditions: tuple[ConditionValue, ...]
) -> EmbeddingServiceStatus:
    """Return the published status with other conditions."""
    resource, published = observed.resource, observed.resource.status
    model = published.model.model_copy(update={"fetching": None}) if published.model is not None else None
    return EmbeddingServiceStatus(
        observed_generation=resource.generation,
        conditions=add_times((*conditions, *build_pooling_conditions(model)), resource, observed.now),
        replicas=published.replicas or 0,
        ready_replicas=published.ready_replicas or 0,
        selector=published.selector,
        endpoint=published.endpoint,
        vector_space=published.vector_space,
        model=model,
        plan=published.plan,
        fetch=published.fetch,
        conversion=published.conversion,
        rollout=published.rollout,
        hardware=published.hardware,
    )


def _report_decision(decision: Decision, plan: Plan, failure: ApplyFailure | None) -> EmbeddingServiceStatus:
    """Return the status of a spec that is carried out."""
    inputs, rollout, preparation = decision.inputs, decision.rollout, decision.preparation
    observed, resource = inputs.observed, inputs.observed.resource
    deployment = observed.find_deployment(rollout.serving)
    model = build_model_status(inputs, rollout)
    autoscaling = build_autoscaling_status(inputs, rollout.serving)
    conditions = (
        *build_conditions(_collect_condition_inputs(decision, failure)),
        *build_scaling_conditions(inputs, rollout.serving),
        *build_upgrade_conditions(decision.upgrade),
        *build_pooling_conditions(model),
        *(() if rollout.is_waiting else build_self_check_conditions(observed.list_pods(rollout.serving))),
        *build_maximum_conditions(autoscaling, observed.now),
    )
    return EmbeddingServiceStatus(
        observed_generation=resource.generation,
        conditions=add_times(conditions, resource, observed.now),
        replicas=deployment.replicas if deployment is not None else 0,
        ready_replicas=deployment.ready if deployment is not None else 0,
        selector=format_selector(resource, rollout.serving),
        endpoint=_build_endpoint(observed),
        vector_space=build_vector_space(inputs, rollout),
        model=_add_progress(model, plan),
        plan=preparation.plan,
        fetch=preparation.fetch,
        conversion=preparation.conversion,
        rollout=build_rollout_status(inputs, decision.blocked_change or rollout),
        hardware=_build_hardware(decision),
        autoscaling=autoscaling,
    )


def _build_endpoint(observed: ObservedState) -> Endpoint:
    resource = observed.resource
    declared = resource.spec.service if resource.spec is not None else None
    grpc = service.format_grpc_address(resource, declared) if declared is not None else None
    return Endpoint(url=service.format_url(resource), grpc=grpc)


def _add_progress(model: ModelStatus | None, plan: Plan) -> ModelStatus | None:
    """Return the model with what the pods that fetch have reported about their progress."""
    if model is None:
        return None
    return model.model_copy(update={"fetching": summarize_progress(plan.fetching_pods)})


def _build_hardware(decision: Decision) -> HardwareStatus:
    inputs = decision.inputs
    requirements = build_node_requirements(inputs.spec, inputs.settings)
    return HardwareStatus(
        class_=inputs.spec.hardware.class_,
        matching_nodes=count_matching_nodes(requirements, inputs.observed.cluster),
    )


def _collect_condition_inputs(decision: Decision, failure: ApplyFailure | None) -> ConditionInputs:
    inputs, desired, preparation = decision.inputs, decision.desired, decision.preparation
    observed, spec, rollout = inputs.observed, inputs.spec, decision.rollout
    pods = tuple(
        pod
        for pod in observed.list_pods(desired.revision)
        if pod.template_hash == desired.template_hash and pod.phase != "Terminating"
    )
    is_held = rollout.state == "Held"
    return ConditionInputs(
        rollout=rollout,
        blocked_change=decision.blocked_change,
        replicas=desired.replicas,
        serving_replicas=_choose_serving_replicas(decision),
        is_suspended=spec.suspend,
        is_autoscaled=spec.autoscaling is not None,
        serving=observed.find_deployment(rollout.serving),
        pods=pods,
        failure=_find_failure(decision, pods),
        activity=preparation.activity,
        claim_failure=preparation.claim_failure,
        held_url=service.format_url(observed.resource, rollout.desired_space) if is_held else "",
        apply_failure=failure,
        has_service=observed.find_child(ChildRef("Service", observed.resource.key.name)) is not None,
    )


def _choose_serving_replicas(decision: Decision) -> int:
    """Return the number of pods that the serving revision should run."""
    observed, rollout, serving = decision.inputs.observed, decision.rollout, decision.serving
    deployment = observed.find_deployment(rollout.serving)
    if not rollout.is_waiting or deployment is None:
        return decision.desired.replicas
    if serving is not None:
        return choose_replicas(observed, serving.spec, rollout.serving)
    if rollout.is_serving_broken or decision.preparation.must_clear:
        # It is scaled down to make room: none of its pods should run, and yet nobody is served without one.
        return max(1, deployment.desired_replicas)
    transfer = plan_frozen_replicas(observed, decision.inputs.spec, rollout.serving)
    return deployment.desired_replicas if transfer is None else transfer.replicas


def _find_failure(decision: Decision, pods: tuple[PodState, ...]) -> Failure | None:
    """Return what keeps the desired revision from serving. `pods` are those of its present pod template."""
    inputs, rollout, desired = decision.inputs, decision.rollout, decision.desired
    observed, preparation = inputs.observed, decision.preparation
    is_incomplete = not rollout.is_complete and desired.replicas > 0
    if is_incomplete and preparation.claim_failure is not None:
        return preparation.claim_failure
    is_prepared = preparation.is_ready and preparation.failure is None
    if is_incomplete and is_prepared:
        placement_failure = find_placement_failure(inputs.spec, inputs.settings, observed.cluster, pods)
        failure = find_mixed_spaces(inputs, rollout) or find_worst_failure(
            observed.find_deployment(rollout.desired), pods, placement_failure
        )
        return describe_insufficient_resources(failure, rollout)
    return find_failed_self_check(pods) if rollout.state == "Checking" else preparation.failure
