"""Ready, Reconciling, Stalled.

Ready is about what is served now. Reconciling (on the way) and Stalled (somebody has to change something) are
about the way to what the spec asks for; they exist only while true and never both, as kstatus reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.plan.outcome import PlannedCondition
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.world import DeploymentFacts, Failure, PodFacts

CHECKING = "Checking"
HELD = "Held"
INVALID_SPEC = "InvalidSpec"
PREPARING = "PreparingModel"
PREVIOUS_SERVING = "PreviousRevisionServing"
PROGRESSING = "Progressing"
SCALED_TO_ZERO = "ScaledToZero"
SERVING = "Serving"
SUSPENDED = "Suspended"
VECTOR_SPACE_CHANGE = "VectorSpaceChange"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the conditions of a readable resource rest on."""

    rollout: Rollout
    refused: Rollout | None
    """The change of the model that is not made; then all else is about what is done instead."""
    replicas: int
    """Pods that should run."""
    suspended: bool
    autoscaled: bool
    serving: DeploymentFacts | None
    pods: tuple[PodFacts, ...]
    """Pods of the wanted template."""
    failure: Failure | None
    preparing: str = ""
    """What the pods still have to wait for, in words; empty when they need not."""
    held_at: str = ""
    """Where the new vector space is reachable while it is held back."""


def conditions(situation: Situation) -> tuple[PlannedCondition, ...]:
    """The conditions of a resource whose spec can be read."""
    found = [_ready(situation)]
    if situation.refused is not None:
        found.append(PlannedCondition("Stalled", "True", VECTOR_SPACE_CHANGE, _stalled_words(situation)))
    elif not situation.rollout.is_as_asked:
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
        plainly = f"{available} of {asked} replicas are ready"
        return PlannedCondition("Ready", "True", *_serving_words(situation, plainly))
    if situation.failure is not None and not situation.rollout.waits:
        return PlannedCondition("Ready", "False", situation.failure.reason, situation.failure.message)
    reason = PREPARING if situation.preparing else PROGRESSING
    return PlannedCondition("Ready", "False", reason, _progress_words(situation, available, asked))


def _way(situation: Situation) -> PlannedCondition:
    failure = situation.failure
    if failure is not None:
        return PlannedCondition(
            "Reconciling" if failure.heals else "Stalled", "True", failure.reason, failure.message
        )
    if situation.rollout.state == "Checking":
        proved = sum(pod.check is not None for pod in situation.pods)
        said = f"{proved} of {len(situation.pods)} new pods have proved their vectors"
        return PlannedCondition("Reconciling", "True", CHECKING, said)
    ready = sum(pod.phase == "Ready" for pod in situation.pods)
    reason = PREPARING if situation.preparing else PROGRESSING
    return PlannedCondition(
        "Reconciling", "True", reason, _progress_words(situation, ready, situation.replicas)
    )


def _serving_words(situation: Situation, plainly: str) -> tuple[str, str]:
    """Reason and message while all pods are there."""
    if situation.refused is not None:
        serving = situation.rollout.serving
        return PREVIOUS_SERVING, f"revision {serving} goes on serving; {refused_words(situation.refused)}"
    if situation.rollout.state == "Held":
        return HELD, _held_words(situation)
    if situation.rollout.waits:
        return PREVIOUS_SERVING, _previous_words(situation)
    return SERVING, plainly


def _held_words(situation: Situation) -> str:
    rollout = situation.rollout
    return (
        f"{rollout.space} is served; {rollout.wanted_space} is ready at {situation.held_at} and takes over when "
        "spec.rollout.hold is false"
    )


def refused_words(refused: Rollout) -> str:
    """Why a change of the model is not made, and what to do."""
    means = refused.wanted_space or "one that is not known as long as no pod of it runs"
    return (
        f"{refused.space} is the vector space of this service, the change of the manifest means {means}, and "
        "spec.rollout.onNewVectorSpace is Refuse: the model stays what it is. Allow it with BlueGreen, or take the "
        "change back"
    )


def _stalled_words(situation: Situation) -> str:
    """With what keeps the other changes of the manifest, which are made."""
    if situation.refused is None:
        raise ValueError("no change is refused")
    words = refused_words(situation.refused)
    if situation.failure is None:
        return words
    return f"{words}. What else the manifest asks for fails: {situation.failure.reason}: {situation.failure.message}"


def _previous_words(situation: Situation) -> str:
    rollout = situation.rollout
    words = f"revision {rollout.serving} goes on serving until revision {rollout.wanted} is complete"
    if situation.failure is None:
        return words
    return f"{words}, which fails: {situation.failure.reason}: {situation.failure.message}"


def _progress_words(situation: Situation, ready: int, asked: int) -> str:
    words = f"{ready} of {asked} replicas are ready"
    if situation.preparing:
        return f"{words}; {situation.preparing}"
    fetching = sum(pod.phase == "Fetching" for pod in situation.pods)
    loading = sum(pod.phase == "Loading" for pod in situation.pods)
    waiting = sum(pod.phase == "Pending" for pod in situation.pods)
    steps = [
        *([f"{fetching} fetching the model"] if fetching else []),
        *([f"{loading} loading it"] if loading else []),
        *([f"{waiting} waiting to start"] if waiting else []),
    ]
    return f"{words} ({', '.join(steps)})" if steps else words
