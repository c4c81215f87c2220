"""Which of several troubles to tell."""

from __future__ import annotations

from embedserve_operator.world import DeploymentFacts, Failure, PodFacts


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
