"""Decides which revision serves: it plans the switch from an old model to a new one.

The Service keeps pointing at the old revision until the new one is complete and its vectors are verified, and
then switches in one write. A new model that cannot start takes nothing away.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.kube.references import ChildRef
from embedserve_operator.manifests.metadata import build_space_name
from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.rollout_cases import (
    Policy,
    Readiness,
    RolloutFacts,
    RolloutState,
    ServingState,
    SpaceChange,
    decide_rollout,
)
from embedserve_operator.plan.vector_spaces import (
    PreviousVectorSpace,
    RetainedRevision,
    find_former_names,
    find_previous_spaces,
    find_retained_revisions,
    find_unexpected_pods,
    find_vector_space,
)
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.pods import PodState
from embedserve_operator.state.workloads import DeploymentState


@dataclass(frozen=True, slots=True)
class Rollout:
    """The change from one revision to another."""

    desired: str
    serving: str
    """The revision that the Service should select."""
    is_complete: bool
    """Indicates that the desired revision runs exactly as the manifest asks."""
    state: RolloutState = "Done"
    """Says what the switch to the desired revision waits for."""
    space: str | None = None
    """The vector space of the serving revision, if it is known."""
    desired_space: str | None = None
    previous_spaces: tuple[PreviousVectorSpace, ...] = ()
    retained: tuple[RetainedRevision, ...] = ()
    has_replicas: bool = True
    """Indicates that the manifest asks for any pods."""
    is_in_place: bool = False
    """Indicates that nothing of the desired revision may run beside what serves."""
    is_serving_broken: bool = False
    """Indicates that the serving revision cannot recover; its Deployment is then scaled down before the Service
    switches.
    """

    @property
    def is_waiting(self) -> bool:
        """Return whether an older revision keeps serving for now."""
        return self.serving != self.desired

    @property
    def is_blocked(self) -> bool:
        """Return whether nothing of the desired revision may run: it is refused, or held where there is no room for
        both.

        A change that is held beside what serves is not blocked: its pods run, and only the switch waits.
        """
        return self.state == "Refused" or (self.state == "Held" and self.is_in_place)

    @property
    def is_done(self) -> bool:
        """Return whether everything is as the manifest asks."""
        # Where no pod should run, nothing more can be verified for now.
        return self.is_complete and (self.state in ("Done", "Held") or not self.has_replicas)


@dataclass(frozen=True, slots=True)
class DesiredRevision:
    """The revision that the manifest asks for, as far as the decision needs it."""

    revision: str
    fingerprint: str
    """Fingerprint of its Deployment; empty while its model is not prepared, so that it cannot be complete."""
    template_hash: str
    """The hash of its pod template."""
    replicas: int
    is_sole_user: bool = False
    """Indicates that its pods cannot run beside those of another revision, which the volume of models does not take."""


def plan_rollout(inputs: PlanInput, desired: DesiredRevision) -> Rollout:
    """Decide which revision serves."""
    observed = inputs.observed
    deployment = observed.find_deployment(desired.revision)
    complete = deployment is not None and is_complete(deployment, desired.fingerprint, desired.replicas)
    state = _decide_state(inputs, desired, complete=complete)
    current = observed.serving_revision
    serving = desired.revision if state == "Done" or current is None else current
    previous_spaces = find_previous_spaces(inputs, serving)
    space = find_vector_space(inputs, serving)
    staying = frozenset((serving, desired.revision))
    return Rollout(
        desired=desired.revision,
        serving=serving,
        is_complete=complete and not find_unexpected_pods(inputs, serving),
        state=state,
        space=space,
        desired_space=find_vector_space(inputs, desired.revision),
        previous_spaces=previous_spaces,
        retained=()
        if desired.is_sole_user
        else find_retained_revisions(inputs, previous_spaces, staying=staying),
        has_replicas=desired.replicas > 0,
        is_in_place=_choose_policy(inputs, desired) == "InPlace",
        is_serving_broken=serving != desired.revision
        and _classify_serving(observed, serving, space) == "Broken",
    )


def _decide_state(inputs: PlanInput, desired: DesiredRevision, *, complete: bool) -> RolloutState:
    current = inputs.observed.serving_revision
    if current is None or current == desired.revision:
        return "Done"
    old, new = find_vector_space(inputs, current), find_vector_space(inputs, desired.revision)
    readiness: Readiness = "Complete" if complete else "Incomplete"
    if complete and desired.replicas > 0 and _is_verified(inputs, desired):
        readiness = "Verified"
    return decide_rollout(
        RolloutFacts(
            policy=_choose_policy(inputs, desired),
            serving=_classify_serving(inputs.observed, current, old),
            space=_compare_spaces(old, new, find_former_names(inputs, desired.revision)),
            desired=readiness,
            has_replicas=desired.replicas > 0,
            is_held=inputs.spec.rollout.hold,
        )
    )


def _choose_policy(inputs: PlanInput, desired: DesiredRevision) -> Policy:
    """Return the policy: on a volume that one pod can mount, the old pods have to stop first."""
    policy = inputs.spec.rollout.on_new_vector_space
    return "InPlace" if desired.is_sole_user and policy == "BlueGreen" else policy


def _compare_spaces(old: str | None, new: str | None, former_names: frozenset[str]) -> SpaceChange:
    """Compare the spaces of two revisions. `former_names` are what releases before `vs2-` called the new one."""
    if old is None or new is None:
        return "Unknown"
    return "Same" if old == new or old in former_names else "Different"


def is_complete(deployment: DeploymentState, fingerprint: str, replicas: int) -> bool:
    """Return whether the Deployment runs the desired manifest in full, and nothing older."""
    runs_manifest = deployment.fingerprint == fingerprint and deployment.is_settled
    has_only_new_pods = deployment.replicas == deployment.updated == replicas
    return runs_manifest and has_only_new_pods and deployment.available >= replicas


def find_candidates(observed: ObservedState, desired: DesiredRevision) -> tuple[PodState, ...]:
    """Return the ready pods that are going to take over."""
    return tuple(
        pod
        for pod in observed.list_pods(desired.revision)
        if pod.phase == "Ready" and pod.template_hash == desired.template_hash
    )


def _is_verified(inputs: PlanInput, desired: DesiredRevision) -> bool:
    """Return whether as many pods as the manifest asks for make correct vectors of one vector space.

    The Service of that space must exist as well, since old pods forward requests to it.
    """
    observed = inputs.observed
    space = find_vector_space(inputs, desired.revision)
    if space is None:
        return False
    if observed.find_child(ChildRef("Service", build_space_name(observed.resource, space))) is None:
        return False
    pods = find_candidates(observed, desired)
    return len(pods) >= desired.replicas and all(_has_passed(pod, space) for pod in pods)


def _has_passed(pod: PodState, space: str) -> bool:
    """Return whether the check of a pod's vectors found no problem, and the Service of this vector space selects it."""
    return pod.self_check is not None and not pod.self_check.problem and pod.space == pod.space_label == space


def _classify_serving(observed: ObservedState, revision: str, space: str | None) -> ServingState:
    """Return the state of the serving revision, whose vector space is `space`."""
    deployment = observed.find_deployment(revision)
    if deployment is not None and deployment.desired_replicas > 0 and _may_serve(observed, deployment):
        return "Alive"
    if space is None:
        return "Unused"
    return "Stopped" if deployment is not None and deployment.desired_replicas == 0 else "Broken"


def _may_serve(observed: ObservedState, deployment: DeploymentState) -> bool:
    """Return whether the pods of a Deployment serve, or waiting may bring them back.

    A revision that never will, because its own model is broken, must not hold resources that the new one needs.
    """
    if deployment.ready > 0:
        return True
    failures = [pod.failure for pod in observed.list_pods(deployment.revision) if pod.failure is not None]
    return all(failure.is_transient for failure in failures)
