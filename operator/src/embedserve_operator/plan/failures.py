"""Which of several troubles to tell."""

from __future__ import annotations

from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.spaces import strangers
from embedserve_operator.world import DeploymentFacts, Failure, PodFacts, World

NO_ROOM_FOR_BOTH = "NoRoomForBoth"
MIXED_SPACES = "MixedVectorSpaces"
SELF_CHECK_FAILED = "SelfCheckFailed"
_LACKS_OF_ROOM = frozenset({"InsufficientAccelerators", "QuotaExceeded", "Unschedulable"})


def worst(
    deployment: DeploymentFacts | None, pods: tuple[PodFacts, ...], unplaced: Failure | None
) -> Failure | None:
    """The trouble that keeps a revision from being complete: one that cannot heal first, then the first
    pod's.

    `pods` are those of the wanted template only: what an older template suffered from may be what was just
    repaired. `unplaced` is what is known of why pods find no node, and says more than the scheduler.
    """
    found = [pod.failure for pod in pods if pod.failure is not None]
    for failure in found:
        if not failure.heals:
            return failure
    if deployment is not None and deployment.creation_problem:
        quota = "exceeded quota" in deployment.creation_problem
        return Failure(
            "QuotaExceeded" if quota else "PodsNotCreated", deployment.creation_problem, heals=True
        )
    if unplaced is not None and all(failure.unplaced for failure in found):
        return unplaced
    return found[0] if found else None


def beside_another(failure: Failure | None, rollout: Rollout) -> Failure | None:
    """A lack of room while another model serves leaves the user a choice. Nothing is taken down unasked."""
    if failure is None or not rollout.waits or failure.reason not in _LACKS_OF_ROOM:
        return failure
    kept = len(rollout.kept)
    choices = (
        "make room for both",
        *(
            [f"give up what is kept of {kept} earlier models with spec.rollout.keepPrevious: 0s"]
            if kept
            else []
        ),
        "let the old pods stop first with spec.rollout.onNewVectorSpace: InPlace, and have no answers until the new "
        "ones are ready",
        "take the change back",
    )
    return Failure(
        NO_ROOM_FOR_BOTH,
        f"the new model finds no room beside revision {rollout.serving}, which goes on serving: {failure.message}. "
        f"Choose: {'; '.join(choices[:-1])}; or {choices[-1]}",
        heals=True,
        unplaced=failure.unplaced,
    )


def mixed(world: World, rollout: Rollout) -> Failure | None:
    """Pods of what serves that make another vector space: the branch that they were fetched from has moved."""
    others = strangers(world, rollout.serving)
    if not others:
        return None
    named = ", ".join(f"{pod.name} ({pod.space})" for pod in others)
    return Failure(
        MIXED_SPACES,
        f"{rollout.space} is served, and these pods make another vector space, since their source has moved on: "
        f"{named}. Requests that reach them are passed on to the others. Name a commit in "
        "spec.model.source.huggingFace.revision",
        heals=False,
    )


def unproved(pods: tuple[PodFacts, ...]) -> Failure | None:
    """Why pods that are ready may not take over."""
    for pod in pods:
        if pod.check is not None and pod.check.problem:
            return Failure(SELF_CHECK_FAILED, f"pod {pod.name}: {pod.check.problem}", heals=True)
    return None
