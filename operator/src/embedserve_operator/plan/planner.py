"""Makes the plan for one resource from the decisions of the other modules in this room."""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan import conditions
from embedserve_operator.plan.children import build_children, find_unwanted_children
from embedserve_operator.plan.evaluation import Evaluation
from embedserve_operator.plan.fetch_progress import find_fetching_pods
from embedserve_operator.plan.jobs import find_unstarted_jobs, list_start_deadlines
from embedserve_operator.plan.model_volume import find_cache_refusal
from embedserve_operator.plan.plan import Plan, ReplicasHandOver
from embedserve_operator.plan.pod_messages import plan_messages, plan_pod_labels, plan_self_checks
from embedserve_operator.plan.refusals import find_refusal
from embedserve_operator.plan.refused_change import keep_served_model
from embedserve_operator.plan.replacement_times import plan_replacement_times
from embedserve_operator.plan.revision_build import (
    EarlierBuild,
    build_retained,
    build_revision,
    build_serving,
)
from embedserve_operator.plan.rollout import Rollout, plan_rollout
from embedserve_operator.plan.scaling import (
    plan_frozen_replicas,
    plan_replica_handover,
    plan_serving_replica_handover,
)
from embedserve_operator.plan.serving_status import build_rollout_status, keep_published_status
from embedserve_operator.plan.status_report import build_status_report
from embedserve_operator.plan.upgrade import (
    carry_out_upgrade,
    is_held_back,
    is_upgraded,
    mark_deployment,
    plan_upgrade,
)
from embedserve_operator.plan.upgrade_cases import UpgradeStep
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.observed import ObservedState


def make_plan(observed: ObservedState, settings: RenderSettings) -> Plan:
    """Decide what the children should be, and what the status says."""
    spec = observed.resource.spec
    if spec is None:
        # What runs keeps running: a resource that cannot be read is not a request to change anything.
        return Plan(
            (),
            (),
            keep_published_status(
                observed.resource, conditions.build_invalid_spec_conditions(observed.resource.problem)
            ),
        )
    evaluation = _evaluate(observed, spec, settings)
    if isinstance(evaluation, Failure):
        return _plan_no_change(observed, evaluation)
    if evaluation.rollout.is_withheld:
        return _plan_without_model_change(evaluation)
    return _build_plan(evaluation)


def _evaluate(
    observed: ObservedState,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    *,
    refused: Rollout | None = None,
) -> Evaluation | Failure:
    """Return how far the spec has been carried out, or why no children can be made of it."""
    failure = find_refusal(spec, settings) or find_cache_refusal(observed, spec, settings)
    if failure is not None:
        return failure
    build = build_revision(observed, spec, settings)
    observed = replace(observed, fetched=build.fetched)
    upgrade: UpgradeStep = "Unaffected"
    if observed.serving_revision in (None, build.desired.revision):
        report, max_concurrent = build.preparation.report, settings.max_concurrent_upgrades
        upgrade = plan_upgrade(observed, build.deployment, report, max_concurrent=max_concurrent)
        build = carry_out_upgrade(observed, build, upgrade)
    rollout = plan_rollout(observed, spec, build.desired)
    serving = None if build.preparation.must_clear else build_serving(observed, spec, settings, rollout)
    if serving is not None:
        upgrade, serving = _plan_serving_upgrade(observed, serving, rollout, settings)
    retained = build_retained(observed, spec, settings, rollout)
    if is_held_back(upgrade):
        retained = tuple(one for one in retained if not is_upgraded(observed, one.deployment))
    return Evaluation(observed, spec, settings, build, rollout, serving, retained, refused, upgrade)


def _plan_serving_upgrade(
    observed: ObservedState, serving: EarlierBuild, rollout: Rollout, settings: RenderSettings
) -> tuple[UpgradeStep, EarlierBuild | None]:
    """Return what an upgrade does with the revision that serves while the manifest asks for another one, and that
    revision after it; None where it stays as it is.
    """
    there = observed.find_deployment(rollout.serving)
    step = plan_upgrade(
        observed,
        serving.deployment,
        there.report if there is not None else None,
        max_concurrent=settings.max_concurrent_upgrades,
    )
    if is_held_back(step):
        return step, None
    return step, replace(serving, deployment=mark_deployment(serving.deployment, step))


def _build_plan(evaluation: Evaluation) -> Plan:
    """Return the plan for a spec."""
    observed, rollout = evaluation.observed, evaluation.rollout
    build, preparation = evaluation.build, evaluation.build.preparation
    children = build_children(evaluation)
    asked = find_fetching_pods(observed, build.desired, preparation.fetch)
    ends = [*(one.until for one in rollout.retained), *list_start_deadlines(observed)]
    if observed.next_failure_at is not None:
        ends.append(observed.next_failure_at)
    return Plan(
        children=children,
        prune=find_unwanted_children(evaluation, children),
        status=build_status_report(evaluation, asked),
        upgrade=evaluation.upgrade,
        jobs_to_create=preparation.jobs_to_create,
        jobs_to_delete=preparation.jobs_to_delete,
        hand_overs=_plan_hand_overs(evaluation),
        replacement_times=plan_replacement_times(observed, rollout),
        labels=plan_pod_labels(observed),
        messages=plan_messages(observed, rollout),
        self_checks=plan_self_checks(observed, rollout, build.desired),
        fetching_pods=asked,
        unstarted_jobs=find_unstarted_jobs(observed),
        wake_after=max(1, min(ends) - observed.now) if ends else None,
    )


def _plan_hand_overs(evaluation: Evaluation) -> tuple[ReplicasHandOver, ...]:
    """Return the numbers of pods to claim."""
    observed, spec, rollout = evaluation.observed, evaluation.spec, evaluation.rollout
    serving, preparation = evaluation.serving, evaluation.build.preparation
    found = [plan_replica_handover(observed, spec, rollout) if preparation.can_serve else None]
    sent = {
        one.deployment["metadata"]["name"]
        for one in evaluation.retained
        if "replicas" in one.deployment["spec"]
    }
    frozen = [one.previous.revision for one in rollout.retained]
    if serving is not None:
        found.append(plan_serving_replica_handover(observed, serving.spec, rollout.serving))
    elif rollout.is_waiting and not (rollout.is_serving_broken or preparation.must_clear):
        frozen.append(rollout.serving)
    found += [plan_frozen_replicas(observed, spec, revision) for revision in frozen]
    return tuple(one for one in found if one is not None and one.deployment not in sent)


def _plan_without_model_change(evaluation: Evaluation) -> Plan:
    """Return the plan for the manifest with the model that is served now: everything is done except the change of
    the model.
    """
    observed, refused = evaluation.observed, evaluation.rollout
    spec = keep_served_model(observed, evaluation.spec, refused)
    if isinstance(spec, Failure):
        return _plan_no_change(observed, spec, refused)
    remaining = _evaluate(observed, spec, evaluation.settings, refused=refused)
    if isinstance(remaining, Failure):
        return _plan_no_change(observed, remaining, refused)
    return _build_plan(remaining)


def _plan_no_change(observed: ObservedState, why: Failure, refused: Rollout | None = None) -> Plan:
    """Return the plan that leaves everything that serves as it is."""
    serving = observed.find_deployment(observed.serving_revision or "")
    status = keep_published_status(observed.resource, conditions.build_refused_conditions(why, serving))
    if refused is not None:
        status = replace(status, rollout=build_rollout_status(observed, refused))
    return Plan((), (), status)
