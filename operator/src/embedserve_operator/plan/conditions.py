"""Ready, Reconciling, Stalled.

Ready is about what is served now. Reconciling (on the way) and Stalled (somebody has to change something) are
about the way to what the spec asks for; they exist only while true and never both, as kstatus reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.plan.outcome import PlannedCondition
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.world import DeploymentFacts, Failure, PodFacts

INVALID_SPEC = "InvalidSpec"
PREVIOUS_SERVING = "PreviousRevisionServing"
PROGRESSING = "Progressing"
SCALED_TO_ZERO = "ScaledToZero"
SERVING = "Serving"
SUSPENDED = "Suspended"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the conditions of a readable resource rest on."""

    rollout: Rollout
    replicas: int
    """Pods that should run."""
    suspended: bool
    autoscaled: bool
    serving: DeploymentFacts | None
    pods: tuple[PodFacts, ...]
    """Pods of the wanted template."""
    failure: Failure | None


def conditions(situation: Situation) -> tuple[PlannedCondition, ...]:
    """The conditions of a resource whose spec can be read."""
    found = [_ready(situation)]
    if not situation.rollout.complete:
        found.append(_way(situation))
    return tuple(found)


def invalid(problem: str) -> tuple[PlannedCondition, ...]:
    """The conditions of a resource that this version of the operator cannot read."""
    message = f"the spec is not valid for this version of the operator: {problem}"
    return (
        PlannedCondition("Ready", "False", INVALID_SPEC, message),
        PlannedCondition("Stalled", "True", INVALID_SPEC, message),
    )


def refused(why: Failure, serving: DeploymentFacts | None) -> tuple[PlannedCondition, ...]:
    """The conditions of a resource that asks for what cannot be; what serves goes on serving."""
    stalled = PlannedCondition("Stalled", "True", why.reason, why.message)
    if serving is None or serving.available == 0:
        return PlannedCondition("Ready", "False", why.reason, why.message), stalled
    said = f"revision {serving.revision} goes on serving; the change is refused: {why.message}"
    return PlannedCondition("Ready", "True", PREVIOUS_SERVING, said), stalled


def _ready(situation: Situation) -> PlannedCondition:
    serving = situation.serving
    if situation.replicas == 0:
        if situation.suspended:
            return PlannedCondition("Ready", "False", SUSPENDED, "spec.suspend is true: no pod runs")
        why = "its autoscaler sees no work" if situation.autoscaled else "spec.replicas is 0"
        return PlannedCondition("Ready", "False", SCALED_TO_ZERO, f"{why}: no pod runs")
    asked = situation.replicas
    if situation.rollout.waits and serving is not None:
        asked = serving.wanted
    available = serving.available if serving is not None else 0
    if available >= asked:
        if situation.rollout.waits:
            return PlannedCondition("Ready", "True", PREVIOUS_SERVING, _previous_words(situation))
        return PlannedCondition("Ready", "True", SERVING, f"{available} of {asked} replicas are ready")
    if situation.failure is not None and not situation.rollout.waits:
        return PlannedCondition("Ready", "False", situation.failure.reason, situation.failure.message)
    return PlannedCondition("Ready", "False", PROGRESSING, _progress_words(situation, available, asked))


def _way(situation: Situation) -> PlannedCondition:
    failure = situation.failure
    if failure is not None:
        return PlannedCondition(
            "Reconciling" if failure.heals else "Stalled", "True", failure.reason, failure.message
        )
    ready = sum(pod.phase == "Ready" for pod in situation.pods)
    return PlannedCondition(
        "Reconciling", "True", PROGRESSING, _progress_words(situation, ready, situation.replicas)
    )


def _previous_words(situation: Situation) -> str:
    rollout = situation.rollout
    words = f"revision {rollout.serving} goes on serving until revision {rollout.wanted} is complete"
    if situation.failure is None:
        return words
    return f"{words}, which fails: {situation.failure.reason}: {situation.failure.message}"


def _progress_words(situation: Situation, ready: int, asked: int) -> str:
    words = f"{ready} of {asked} replicas are ready"
    fetching = sum(pod.phase == "Fetching" for pod in situation.pods)
    loading = sum(pod.phase == "Loading" for pod in situation.pods)
    waiting = sum(pod.phase == "Pending" for pod in situation.pods)
    steps = [
        *([f"{fetching} fetching the model"] if fetching else []),
        *([f"{loading} loading it"] if loading else []),
        *([f"{waiting} waiting to start"] if waiting else []),
    ]
    return f"{words} ({', '.join(steps)})" if steps else words
