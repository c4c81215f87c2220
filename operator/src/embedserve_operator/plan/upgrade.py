"""This module gathers what decides about an upgrade of the Deployment that serves, and carries the decision into it."""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.deployment import mark_upgrade, read_template_hash
from embedserve_operator.plan.failures import find_worst_failure
from embedserve_operator.plan.plan import PlannedCondition
from embedserve_operator.plan.revision_build import RevisionBuild
from embedserve_operator.plan.upgrade_cases import (
    PodsState,
    TemplateChange,
    Turn,
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
"""What the Deployment says after each step that writes it."""


def is_held_back(step: UpgradeStep) -> bool:
    """Return whether the Deployment stays as it is."""
    return step in ("Wait", "Stop")


def plan_upgrade(
    observed: ObservedState, wanted: Manifest, report: ModelReport | None, *, max_concurrent: int
) -> UpgradeStep:
    """Return what an upgrade does with a Deployment that serves.

    `wanted` is the Deployment as it should be, `report` what a Job has found out about its model, `max_concurrent` the
    number of services that may roll at a time.
    """
    there = _find_deployment(observed, wanted)
    if there is None:
        return "Unaffected"
    return decide_upgrade(
        UpgradeFacts(
            phase=there.upgrade,
            template=_classify_change(observed, there, wanted, report),
            pods=_classify_pods(observed, there),
            has_ready_pods=there.ready > 0,
            turn=_find_turn(observed, max_concurrent),
        )
    )


def is_upgraded(observed: ObservedState, wanted: Manifest) -> bool:
    """Return whether a Deployment of an earlier model would get another template because of the operator alone."""
    there = _find_deployment(observed, wanted)
    return there is not None and _classify_change(observed, there, wanted, there.report) == "Upgraded"


def _find_deployment(observed: ObservedState, wanted: Manifest) -> DeploymentState | None:
    return next((one for one in observed.deployments if one.name == wanted["metadata"]["name"]), None)


def _classify_change(
    observed: ObservedState, there: DeploymentState, wanted: Manifest, report: ModelReport | None
) -> TemplateChange:
    if read_template_hash(wanted) == there.template_hash:
        return "None"
    resource = observed.resource
    # A Deployment of an operator that did not say it was made from what that one published.
    made_from = resource.status.observed_generation if there.generation is None else there.generation
    is_same = made_from == resource.generation and there.report == report
    return "Upgraded" if is_same else "Edited"


def _classify_pods(observed: ObservedState, there: DeploymentState) -> PodsState:
    if there.is_rolled_out:
        return "Ready"
    pods = tuple(
        pod
        for pod in observed.list_pods(there.revision)
        if pod.template_hash == there.template_hash and pod.phase != "Terminating"
    )
    failure = find_worst_failure(there, pods, None)
    is_failing = there.is_stuck or (failure is not None and not failure.is_transient)
    return "Failing" if is_failing else "Starting"


def _find_turn(observed: ObservedState, max_concurrent: int) -> Turn:
    others = observed.upgrade
    if others.failed > 0:
        return "Stopped"
    return "Free" if others.rolling < max_concurrent else "Taken"


def mark_deployment(wanted: Manifest, step: UpgradeStep) -> Manifest:
    """Return a Deployment that says which step an upgrade has taken with it."""
    phase = _PHASES.get(step)
    return wanted if phase is None else mark_upgrade(wanted, phase)


def carry_out_upgrade(observed: ObservedState, build: RevisionBuild, step: UpgradeStep) -> RevisionBuild:
    """Return a revision with the step that an upgrade takes with its Deployment.

    Where that stays as it is, it is all that is asked for.
    """
    there = observed.find_deployment(build.desired.revision)
    if there is None or not is_held_back(step):
        return replace(build, deployment=mark_deployment(build.deployment, step))
    desired = replace(
        build.desired,
        fingerprint=there.fingerprint if build.desired.fingerprint else "",
        template_hash=there.template_hash,
    )
    return replace(build, desired=desired, is_held_back=True)


def build_upgrade_conditions(step: UpgradeStep) -> tuple[PlannedCondition, ...]:
    """Return the condition that an upgrade of the operator is not over for the service; none where it is."""
    said = _CONDITIONS.get(step)
    return () if said is None else (PlannedCondition("Upgrading", "True", *said),)


ROLLING_OUT = "RollingOut"
WAITING_FOR_TURN = "WaitingForTurn"
_ROLLING = (ROLLING_OUT, "the operator was upgraded or its settings changed, and the pods are being replaced")
_CONDITIONS: dict[UpgradeStep, tuple[str, str]] = {
    "Begin": _ROLLING,
    "Roll": _ROLLING,
    "Fail": (
        "UpgradeFailed",
        "the operator was upgraded or its settings changed, and the new pods do not become ready; no other service is "
        "upgraded before these are ready, the manifest is changed, or the operator's release or setting is",
    ),
    "Wait": (
        WAITING_FOR_TURN,
        "the operator was upgraded or its settings changed; the pods are replaced when it is this service's turn (the "
        "chart's upgrade.maxConcurrent), or at once when the manifest changes",
    ),
    "Stop": (
        "UpgradeStopped",
        "the operator was upgraded or its settings changed, and the new pods of another service do not become ready: "
        "the pods of this one stay as they are",
    ),
}
"""Reason and message of the condition after each step that has one."""
