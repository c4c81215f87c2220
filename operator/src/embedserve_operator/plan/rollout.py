"""This module decides which revision serves: it plans the switch from an old model to a new one.

The Service keeps pointing at the old revision until the new one is complete and has proved its vectors, and
then switches in one write. A new model that cannot start takes nothing away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.manifests.metadata import space_name
from embedserve_operator.plan.vector_spaces import (
    PreviousVectorSpace,
    RetainedRevision,
    find_previous_spaces,
    find_retained_revisions,
    find_unexpected_pods,
    find_vector_space,
)
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.pods import PodState
from embedserve_operator.state.workloads import DeploymentState

RolloutState = Literal["Done", "Preparing", "Checking", "Held", "Refused"]


@dataclass(frozen=True, slots=True)
class Rollout:
    """Describes the change from one revision to another."""

    desired: str
    serving: str
    """The revision that the Service should select."""
    is_complete: bool
    """Whether the desired revision runs exactly as the manifest asks."""
    state: RolloutState = "Done"
    """What keeps the desired revision from serving."""
    space: str | None = None
    """The vector space of the serving revision, if it is known."""
    desired_space: str | None = None
    previous_spaces: tuple[PreviousVectorSpace, ...] = ()
    retained: tuple[RetainedRevision, ...] = ()

    @property
    def is_waiting(self) -> bool:
        """Whether an older revision keeps serving for now."""
        return self.serving != self.desired

    @property
    def is_done(self) -> bool:
        """Whether everything is as the manifest asks."""
        return self.is_complete and self.state in ("Done", "Held")


@dataclass(frozen=True, slots=True)
class DesiredRevision:
    """Holds what the manifest asks for, as far as the decision needs it."""

    revision: str
    fingerprint: str
    """Fingerprint of its Deployment."""
    template_hash: str
    """Hash of its pod template."""
    replicas: int


def plan_rollout(observed: ObservedState, spec: EmbeddingServiceSpec, desired: DesiredRevision) -> Rollout:
    """Decide which revision serves."""
    deployment = observed.find_deployment(desired.revision)
    complete = deployment is not None and is_complete(deployment, desired.fingerprint, desired.replicas)
    state = _decide_state(observed, spec, desired, complete=complete)
    current = observed.serving_revision
    serving = desired.revision if state == "Done" or current is None else current
    known = find_previous_spaces(observed, serving)
    return Rollout(
        desired=desired.revision,
        serving=serving,
        is_complete=complete and not find_unexpected_pods(observed, serving),
        state=state,
        space=find_vector_space(observed, serving),
        desired_space=find_vector_space(observed, desired.revision),
        previous_spaces=known,
        retained=find_retained_revisions(
            observed, spec, known, others=frozenset((serving, desired.revision))
        ),
    )


class _RolloutFacts(NamedTuple):
    """Holds what decides whether the desired revision takes over from another one."""

    policy: str
    """What the manifest asks for when the vector space changes."""
    is_name_guarded: bool
    """Whether the policy is Refuse, and the service's name stands for a vector space."""
    is_other_space: bool
    """Whether the desired revision makes another vector space, or will never tell since it has no pods."""
    is_old_alive: bool
    """Whether the old revision serves, or waiting may bring it back."""
    is_new_complete: bool
    has_replicas: bool
    """Whether the manifest asks for any pods."""
    is_new_verified: bool
    is_held: bool
    """Whether the manifest holds back another vector space."""


class _RolloutCase(NamedTuple):
    """Maps facts to a state; None stands for any value."""

    state: RolloutState
    policy: str | None = None
    is_name_guarded: bool | None = None
    is_other_space: bool | None = None
    is_old_alive: bool | None = None
    is_new_complete: bool | None = None
    has_replicas: bool | None = None
    is_new_verified: bool | None = None
    is_held: bool | None = None

    def matches(self, facts: _RolloutFacts) -> bool:
        """Return whether the case is about these facts."""
        return all(wanted in (None, found) for wanted, found in zip(self[1:], facts, strict=True))


_ROLLOUT_CASES = (
    _RolloutCase("Refused", is_name_guarded=True, is_other_space=True),
    # A broken old model is not in the way, unless its vector space is what Refuse protects.
    _RolloutCase("Done", is_name_guarded=False, is_old_alive=False),
    _RolloutCase("Done", policy="InPlace"),
    _RolloutCase("Done", is_new_complete=True, has_replicas=False),
    _RolloutCase("Preparing", is_new_complete=False),
    _RolloutCase("Checking", is_new_verified=False),
    _RolloutCase("Held", is_held=True),
    _RolloutCase("Done"),
)
"""The first case that matches decides."""


def _decide_state(
    observed: ObservedState, spec: EmbeddingServiceSpec, desired: DesiredRevision, *, complete: bool
) -> RolloutState:
    current = observed.serving_revision
    if current is None or current == desired.revision:
        return "Done"
    facts = _collect_facts(observed, spec, desired, current, complete=complete)
    return next(case.state for case in _ROLLOUT_CASES if case.matches(facts))


def _collect_facts(
    observed: ObservedState,
    spec: EmbeddingServiceSpec,
    desired: DesiredRevision,
    current: str,
    *,
    complete: bool,
) -> _RolloutFacts:
    old, new = find_vector_space(observed, current), find_vector_space(observed, desired.revision)
    policy = spec.rollout.on_new_vector_space
    return _RolloutFacts(
        policy=policy,
        is_name_guarded=policy == "Refuse" and _has_vector_space(observed, current, old),
        # Without pods of the new model, nobody finds out what it makes.
        is_other_space=new != old and (new is not None or desired.replicas == 0),
        is_old_alive=_can_serve(observed, current),
        is_new_complete=complete,
        has_replicas=desired.replicas > 0,
        is_new_verified=_is_verified(observed, desired),
        is_held=spec.rollout.hold and old != new,
    )


def is_complete(deployment: DeploymentState, fingerprint: str, replicas: int) -> bool:
    """Return whether the Deployment runs the desired manifest in full, and nothing older."""
    return (
        deployment.fingerprint == fingerprint
        and deployment.is_settled
        and deployment.updated >= replicas
        and deployment.available >= replicas
        and deployment.replicas == deployment.updated == replicas
    )


def find_candidates(observed: ObservedState, desired: DesiredRevision) -> tuple[PodState, ...]:
    """Return the ready pods that are going to take over."""
    return tuple(
        pod
        for pod in observed.list_pods(desired.revision)
        if pod.phase == "Ready" and pod.template_hash == desired.template_hash
    )


def _is_verified(observed: ObservedState, desired: DesiredRevision) -> bool:
    """Return whether as many pods as the manifest asks for make sound vectors of one vector space.

    They must also be reachable by the name of that space, since requests that still reach the old pods are
    passed on to it.
    """
    space = find_vector_space(observed, desired.revision)
    if (
        space is None
        or observed.find_child(ChildRef("Service", space_name(observed.resource, space))) is None
    ):
        return False
    pods = find_candidates(observed, desired)
    return len(pods) >= desired.replicas and all(
        pod.self_check is not None and not pod.self_check.problem and pod.space == pod.space_label == space
        for pod in pods
    )


def _has_vector_space(observed: ObservedState, revision: str, space: str | None) -> bool:
    """Return whether the service's name stands for a vector space: that of a model that serves, or that was
    stopped.
    """
    deployment = observed.find_deployment(revision)
    if deployment is None or space is None:
        return False
    return deployment.desired_replicas == 0 or _can_serve(observed, revision)


def _can_serve(observed: ObservedState, revision: str) -> bool:
    """Return whether an old revision is worth keeping: it serves, or waiting may bring it back.

    A revision that never will, because its own model is broken, must not be in the way, nor hold resources
    that the new one needs.
    """
    deployment = observed.find_deployment(revision)
    if deployment is None or deployment.desired_replicas == 0:
        return False
    if deployment.ready > 0:
        return True
    failures = [pod.failure for pod in observed.list_pods(revision) if pod.failure is not None]
    return all(failure.is_transient for failure in failures)
