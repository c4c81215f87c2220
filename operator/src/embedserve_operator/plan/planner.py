"""Makes the plan for one resource from the decisions of the other modules of this package."""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan.blocked_change import keep_served_model
from embedserve_operator.plan.children import build_children, find_unwanted_children
from embedserve_operator.plan.decision import Decision
from embedserve_operator.plan.desired_revision import describe_present_deployment, describe_revision
from embedserve_operator.plan.fetch_progress import find_fetching_pods
from embedserve_operator.plan.jobs import find_unstarted_jobs, list_start_deadlines
from embedserve_operator.plan.memory_advice import add_memory_advice
from embedserve_operator.plan.model_size import plan_size_job
from embedserve_operator.plan.model_volume import find_cache_refusal
from embedserve_operator.plan.ownership_transfers import plan_ownership_transfers
from embedserve_operator.plan.plan import Plan, SpecRefusal
from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.pod_messages import plan_messages, plan_pod_labels, plan_self_checks
from embedserve_operator.plan.preparation import Preparation, plan_preparation
from embedserve_operator.plan.refusals import find_refusal
from embedserve_operator.plan.replacement_times import plan_replacement_times
from embedserve_operator.plan.revision import compute_revision
from embedserve_operator.plan.revision_manifests import (
    RevisionManifests,
    render_retained,
    render_revision,
    render_serving,
)
from embedserve_operator.plan.rollout import DesiredRevision, Rollout, plan_rollout
from embedserve_operator.plan.upgrade import is_upgraded, plan_upgrade
from embedserve_operator.plan.upgrade_cases import UpgradeStep, is_deferred
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.models import FetchedModel
from embedserve_operator.state.observed import ObservedState


def make_plan(observed: ObservedState, settings: RenderSettings) -> Plan:
    """Decide what is to be done about one resource."""
    spec = observed.resource.spec
    if spec is None:
        # What runs keeps running: a resource that cannot be read is not a request to change anything.
        return Plan(outcome=None)
    decision = _evaluate_spec(add_memory_advice(observed, spec, settings), spec, settings)
    if isinstance(decision, Failure):
        return Plan(SpecRefusal(decision))
    if decision.rollout.is_blocked:
        return _plan_without_model_change(decision)
    return _build_plan(decision)


def _evaluate_spec(
    observed: ObservedState,
    spec: EmbeddingServiceSpec,
    settings: RenderSettings,
    *,
    blocked_change: Rollout | None = None,
) -> Decision | Failure:
    """Return what follows from a spec, or why no children can be made of it.

    `blocked_change` is the change of the model that the spec of the resource asks for beyond `spec`.
    """
    failure = find_refusal(spec, settings) or find_cache_refusal(observed, spec, settings)
    if failure is not None:
        return failure
    preparation = plan_preparation(observed, spec, settings)
    if preparation.volume is None:
        preparation = plan_size_job(observed, spec, settings)
    inputs = PlanInput(
        observed,
        spec,
        settings,
        _find_fetched_model(spec, preparation),
        planned_size=preparation.planned_size,
    )
    # The rollout compares the fingerprint and the template hash of the desired revision with what runs. Both are hashes
    # of its rendered Deployment, so that is rendered first; whether it is written follows from the decision.
    manifests = render_revision(inputs)
    desired = describe_revision(inputs, preparation, manifests)
    is_change = observed.serving_revision not in (None, desired.revision)
    decide = _decide_revision_change if is_change else _decide_same_revision
    decision = decide(inputs, preparation, manifests, desired)
    return replace(decision, retained=_render_retained(decision), blocked_change=blocked_change)


def _decide_same_revision(
    inputs: PlanInput, preparation: Preparation, manifests: RevisionManifests, desired: DesiredRevision
) -> Decision:
    """Decide about a revision that serves already, or is the first one of its resource.

    An upgrade that waits for its turn leaves the Deployment as it is, and that is then what complete means. So the
    upgrade is decided before the rollout.
    """
    upgrade = plan_upgrade(inputs, manifests.deployment, preparation.report)
    if is_deferred(upgrade):
        desired = describe_present_deployment(inputs, desired)
    return Decision(
        inputs=inputs,
        preparation=preparation,
        desired=desired,
        manifests=manifests,
        rollout=plan_rollout(inputs, desired),
        upgrade=upgrade,
    )


def _decide_revision_change(
    inputs: PlanInput, preparation: Preparation, manifests: RevisionManifests, desired: DesiredRevision
) -> Decision:
    """Decide about a revision that takes over from the one that serves.

    The upgrade is about the Deployment that serves, which follows from the rollout. So the upgrade is decided after it.
    """
    rollout = plan_rollout(inputs, desired)
    serving = None if preparation.must_clear else render_serving(inputs, rollout)
    upgrade = _plan_serving_upgrade(inputs, serving, rollout)
    return Decision(
        inputs=inputs,
        preparation=preparation,
        desired=desired,
        manifests=manifests,
        rollout=rollout,
        upgrade=upgrade,
        serving=None if is_deferred(upgrade) else serving,
    )


def _render_retained(decision: Decision) -> tuple[RevisionManifests, ...]:
    """Return the manifests of the retained revisions, without those that a deferred upgrade leaves as they are."""
    retained = render_retained(decision.inputs, decision.rollout)
    if not is_deferred(decision.upgrade):
        return retained
    observed = decision.inputs.observed
    return tuple(revision for revision in retained if not is_upgraded(observed, revision.deployment))


def _find_fetched_model(spec: EmbeddingServiceSpec, preparation: Preparation) -> FetchedModel | None:
    """Return what Jobs have found out about the model that a spec declares."""
    report = preparation.report
    return None if report is None else FetchedModel(compute_revision(spec), report)


def _plan_serving_upgrade(
    inputs: PlanInput, serving: RevisionManifests | None, rollout: Rollout
) -> UpgradeStep:
    """Return what an upgrade does with the revision that serves while another one is desired."""
    deployment = inputs.observed.find_deployment(rollout.serving)
    if serving is None or deployment is None:
        return "Unaffected"
    return plan_upgrade(inputs, serving.deployment, deployment.report)


def _build_plan(decision: Decision) -> Plan:
    """Return the plan that carries out a decision."""
    observed, rollout, preparation = decision.inputs.observed, decision.rollout, decision.preparation
    children = build_children(decision)
    return Plan(
        outcome=decision,
        children=children,
        prune=find_unwanted_children(decision, children),
        upgrade=decision.upgrade,
        jobs_to_create=preparation.jobs_to_create,
        jobs_to_delete=preparation.jobs_to_delete,
        ownership_transfers=plan_ownership_transfers(decision),
        replacement_times=plan_replacement_times(observed, rollout),
        labels=plan_pod_labels(observed),
        messages=plan_messages(observed, rollout),
        self_checks=plan_self_checks(observed, rollout, decision.desired),
        fetching_pods=find_fetching_pods(observed, decision.desired, preparation.fetch),
        unstarted_jobs=find_unstarted_jobs(observed),
        wake_after=_find_next_change(observed, rollout),
    )


def _find_next_change(observed: ObservedState, rollout: Rollout) -> int | None:
    """Return the seconds after which something changes merely because time passes; None where nothing does."""
    moments = [*(retained.until for retained in rollout.retained), *list_start_deadlines(observed)]
    if observed.next_failure_at is not None:
        moments.append(observed.next_failure_at)
    return max(1, min(moments) - observed.now) if moments else None


def _plan_without_model_change(decision: Decision) -> Plan:
    """Return the plan for the manifest with the model that is served now: everything is done except the change of
    the model.
    """
    inputs, blocked_change = decision.inputs, decision.rollout
    spec = keep_served_model(inputs.observed, inputs.spec, blocked_change)
    if isinstance(spec, Failure):
        return Plan(SpecRefusal(spec, blocked_change=decision))
    remaining = _evaluate_spec(inputs.observed, spec, inputs.settings, blocked_change=blocked_change)
    if isinstance(remaining, Failure):
        return Plan(SpecRefusal(remaining, blocked_change=decision))
    return _build_plan(remaining)
