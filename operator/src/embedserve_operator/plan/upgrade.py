"""Decides what an upgrade of the operator does with a Deployment that serves, and marks the Deployment with it."""

from __future__ import annotations

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.deployment import annotate_upgrade, format_report, read_template_hash
from embedserve_operator.plan.failures import find_worst_failure
from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.upgrade_cases import (
    PodsState,
    SlotState,
    TemplateChange,
    UpgradeFacts,
    UpgradeStep,
    decide_upgrade,
)
from embedserve_operator.state.models import ModelReport
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.upgrades import UpgradePhase
from embedserve_operator.state.workloads import DeploymentState

_PHASES: dict[UpgradeStep, UpgradePhase] = {
    "Begin": "Rolling",
    "Roll": "Rolling",
    "Fail": "Failed",
    "Finish": "",
}
"""The phase that is annotated on the Deployment after each step that writes it."""


def plan_upgrade(inputs: PlanInput, deployment: Manifest, fetched: ModelReport | None) -> UpgradeStep:
    """Return what an upgrade does with a Deployment that serves.

    `deployment` is the Deployment as it should be, `fetched` what a Job has found out about its model.
    """
    present = _find_present(inputs.observed, deployment)
    if present is None:
        return "Unaffected"
    return decide_upgrade(
        UpgradeFacts(
            phase=present.upgrade,
            template=_classify_change(inputs.observed, present, deployment, fetched),
            pods=_classify_pods(inputs.observed, present),
            has_ready_pods=present.ready > 0,
            slot=_find_slot(inputs),
        )
    )


def is_upgraded(observed: ObservedState, deployment: Manifest) -> bool:
    """Return whether a Deployment of an earlier model would get another template because of the operator alone."""
    present = _find_present(observed, deployment)
    return (
        present is not None and _classify_change(observed, present, deployment, present.report) == "Upgraded"
    )


def _find_present(observed: ObservedState, deployment: Manifest) -> DeploymentState | None:
    """Return the Deployment that exists under the name of a manifest."""
    name = deployment["metadata"]["name"]
    return next((present for present in observed.deployments if present.name == name), None)


def _classify_change(
    observed: ObservedState, present: DeploymentState, deployment: Manifest, fetched: ModelReport | None
) -> TemplateChange:
    if read_template_hash(deployment) == present.template_hash:
        return "None"
    resource = observed.resource
    # A Deployment of an operator that did not say it was made from what that one published.
    made_from = resource.status.observed_generation if present.generation is None else present.generation
    is_same = made_from == resource.generation and _have_equal_annotations(present.report, fetched)
    return "Upgraded" if is_same else "Edited"


def _have_equal_annotations(present: ModelReport | None, fetched: ModelReport | None) -> bool:
    """Return whether two reports are the same as far as a pod template says: it has not all of a report."""
    if present is None or fetched is None:
        return present is fetched
    return format_report(present) == format_report(fetched)


def _classify_pods(observed: ObservedState, present: DeploymentState) -> PodsState:
    if present.is_rolled_out:
        return "Ready"
    pods = tuple(
        pod
        for pod in observed.list_pods(present.revision)
        if pod.template_hash == present.template_hash and pod.phase != "Terminating"
    )
    failure = find_worst_failure(present, pods, None)
    is_failing = present.is_stuck or (failure is not None and not failure.is_transient)
    return "Failing" if is_failing else "Starting"


def _find_slot(inputs: PlanInput) -> SlotState:
    progress = inputs.observed.upgrade
    if progress.failed > 0:
        return "Stopped"
    return "Free" if progress.rolling < inputs.settings.max_concurrent_upgrades else "Taken"


def annotate_deployment(deployment: Manifest, step: UpgradeStep) -> Manifest:
    """Return a Deployment that says which step an upgrade has taken with it."""
    phase = _PHASES.get(step)
    return deployment if phase is None else annotate_upgrade(deployment, phase)
