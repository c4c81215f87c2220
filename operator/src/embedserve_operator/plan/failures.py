"""Which of several troubles to tell."""

from __future__ import annotations

from embedserve_operator.world import DeploymentFacts, Failure, PodFacts


def worst(deployment: DeploymentFacts | None, pods: tuple[PodFacts, ...]) -> Failure | None:
    """The trouble that keeps a revision from being complete: one that cannot heal first, then the first
    pod's.

    `pods` are those of the wanted template only: what an older template suffered from may be what was just
    repaired.
    """
    found = [pod.failure for pod in pods if pod.failure is not None]
    for failure in found:
        if not failure.heals:
            return failure
    if found:
        return found[0]
    if deployment is not None and deployment.creation_problem:
        return Failure("PodsNotCreated", deployment.creation_problem, heals=True)
    return None
