"""Decides which of several failures is reported."""

from __future__ import annotations

from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.vector_spaces import find_unexpected_pods
from embedserve_operator.state.failures import Failure, build_creation_failure
from embedserve_operator.state.pods import PodState
from embedserve_operator.state.workloads import DeploymentState

NO_ROOM_FOR_BOTH = "NoRoomForBoth"
MIXED_SPACES = "MixedVectorSpaces"
SELF_CHECK_FAILED = "SelfCheckFailed"
_LACK_OF_ROOM_REASONS = frozenset({"InsufficientAccelerators", "QuotaExceeded", "Unschedulable"})


def find_worst_failure(
    deployment: DeploymentState | None, pods: tuple[PodState, ...], placement_failure: Failure | None
) -> Failure | None:
    """Return the failure that keeps a revision from being complete: a permanent one first, otherwise that of
    the first pod.

    `pods` are those of the desired pod template only, since the failure of an older template may just have
    been repaired. `placement_failure` is what is known about why pods find no node; it says more than the
    scheduler does.
    """
    failures = [pod.failure for pod in pods if pod.failure is not None]
    for failure in failures:
        if not failure.is_transient:
            return failure
    if deployment is not None and deployment.creation_problem:
        return build_creation_failure(deployment.creation_problem)
    if placement_failure is not None and all(failure.is_unscheduled for failure in failures):
        return placement_failure
    return failures[0] if failures else None


def describe_insufficient_resources(failure: Failure | None, rollout: Rollout) -> Failure | None:
    """Describe insufficient room for a second model as a choice that the user has.

    Nothing is taken down unasked.
    """
    if failure is None or not rollout.is_waiting or failure.reason not in _LACK_OF_ROOM_REASONS:
        return failure
    retained = len(rollout.retained)
    choices = (
        "make room for both",
        *(
            [f"remove the earlier models that are kept ({retained}) with spec.rollout.keepPrevious: 0s"]
            if retained
            else []
        ),
        "stop the old pods first with spec.rollout.onNewVectorSpace: InPlace, and have no answers until the new ones "
        "are ready",
        "revert the change",
    )
    return Failure(
        NO_ROOM_FOR_BOTH,
        f"there is no room for the new model beside revision {rollout.serving}, which keeps serving: {failure.message}"
        f". Choose: {'; '.join(choices[:-1])}; or {choices[-1]}",
        is_transient=True,
        is_unscheduled=failure.is_unscheduled,
    )


def find_mixed_spaces(inputs: PlanInput, rollout: Rollout) -> Failure | None:
    """Return that some pods of the serving revision make another vector space, since the branch that they were
    fetched from has moved.
    """
    unexpected = find_unexpected_pods(inputs, rollout.serving)
    if not unexpected:
        return None
    described = ", ".join(f"{pod.name} ({pod.space})" for pod in unexpected)
    return Failure(
        MIXED_SPACES,
        f"{rollout.space} is served, and these pods produce another vector space, because their source has changed: "
        f"{described}. Requests that reach them are forwarded to the others. Name a commit in "
        "spec.model.source.huggingFace.revision",
        is_transient=False,
    )


def find_failed_self_check(pods: tuple[PodState, ...]) -> Failure | None:
    """Return why pods that are ready may not take over."""
    for pod in pods:
        if pod.self_check is not None and pod.self_check.problem:
            return Failure(SELF_CHECK_FAILED, f"pod {pod.name}: {pod.self_check.problem}", is_transient=True)
    return None
