"""Builds the conditions Ready, Reconciling, Stalled, PoolingGuessed and SelfCheckFailed.

Ready says what is served now, and is true of a service that should have no pods: it has all that it should have.
Reconciling (on the way) and Stalled (somebody has to change something) say how far it is from what the spec
asks for; they exist only while they are true, and never both, as kstatus reads them. PoolingGuessed and
SelfCheckFailed warn of what is served.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from embedserve_operator.api.status import ModelStatus
from embedserve_operator.apply.results import ApplyFailure
from embedserve_operator.plan.blocked_change import VECTOR_SPACE_CHANGE, describe_blocked_change
from embedserve_operator.plan.failures import find_failed_self_check
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.pods import PodState
from embedserve_operator.state.workloads import DeploymentState
from embedserve_operator.status.condition_values import ConditionValue

CHECKING = "Checking"
HELD = "Held"
MEAN_GUESSED = "MeanGuessed"
INVALID_SPEC = "InvalidSpec"
PREPARING = "PreparingModel"
PREVIOUS_SERVING = "PreviousRevisionServing"
PROGRESSING = "Progressing"
SCALED_TO_ZERO = "ScaledToZero"
SERVING = "Serving"
SUSPENDED = "Suspended"


@dataclass(frozen=True, slots=True)
class ConditionInputs:
    """The facts that the conditions of a readable resource rest on."""

    rollout: Rollout
    blocked_change: Rollout | None
    """The change of the model that is blocked; everything else is then about what is done instead."""
    replicas: int
    """The number of pods that should run."""
    serving_replicas: int
    """The number of pods of the serving revision that should run once this pass has been carried out; its Deployment
    may still have another one.
    """
    is_suspended: bool
    is_autoscaled: bool
    serving: DeploymentState | None
    pods: tuple[PodState, ...]
    """The pods of the desired pod template."""
    failure: Failure | None
    activity: str = ""
    """Human-readable description of what the pods still have to wait for; empty when they need not wait."""
    claim_failure: Failure | None = None
    """The reason why pods that start cannot mount the volume of models, while those that run go on."""
    held_url: str = ""
    """The URL at which the new vector space can be reached while it is held; empty otherwise."""
    apply_failure: ApplyFailure | None = None
    """The failure of what this pass could not write."""
    has_service: bool = True
    """Indicates that the Service of the resource's name existed before this pass: without it, nothing leads to pods."""


def build_conditions(inputs: ConditionInputs) -> tuple[ConditionValue, ...]:
    """Return Ready of a resource whose spec can be read, and Reconciling or Stalled where one of them holds."""
    progress = _build_progress(inputs)
    return (_build_ready(inputs), *((progress,) if progress is not None else ()))


def build_pooling_conditions(model: ModelStatus | None) -> tuple[ConditionValue, ...]:
    """Return the condition that the served model's pooling is a guess; none where it is not, or nobody said so."""
    if model is None or model.guesses_pooling is not True:
        return ()
    message = (
        f"no file of {model.source} says how to pool, so the mean is used, which is a guess: set spec.model.pooling; "
        "with the value mean the vectors do not change"
    )
    return (ConditionValue("PoolingGuessed", "True", MEAN_GUESSED, message),)


def build_self_check_conditions(pods: tuple[PodState, ...]) -> tuple[ConditionValue, ...]:
    """Return the condition that the operator could not check the vectors of a serving pod; none where it could, or has
    not tried yet.
    """
    failure = find_failed_self_check(tuple(pod for pod in pods if pod.phase == "Ready"))
    if failure is None:
        return ()
    message = f"{failure.message}. The pod serves; another model could not take over from it"
    return (ConditionValue("SelfCheckFailed", "True", failure.reason, message),)


def build_invalid_spec_conditions(problem: str) -> tuple[ConditionValue, ...]:
    """Return the conditions of a resource that this version of the operator cannot read."""
    message = f"the spec is not valid for this version of the operator: {problem}"
    return (
        ConditionValue("Ready", "False", INVALID_SPEC, message),
        ConditionValue("Stalled", "True", INVALID_SPEC, message),
    )


def build_refused_conditions(failure: Failure, serving: DeploymentState | None) -> tuple[ConditionValue, ...]:
    """Return the conditions of a resource that asks for something impossible; running pods keep serving."""
    stalled = ConditionValue("Stalled", "True", failure.reason, failure.message)
    if serving is None or serving.available == 0:
        return ConditionValue("Ready", "False", failure.reason, failure.message), stalled
    message = f"revision {serving.revision} keeps serving; the change is refused: {failure.message}"
    return ConditionValue("Ready", "True", PREVIOUS_SERVING, message), stalled


def _find_blocking_failure(inputs: ConditionInputs) -> ApplyFailure | None:
    """Return the failure to write a child that makes Ready untrue: pods that should stop run on, or no Service leads to
    the pods.
    """
    serving = inputs.serving
    if inputs.replicas == 0:
        return inputs.apply_failure if serving is not None and serving.replicas > 0 else None
    return None if inputs.has_service else inputs.apply_failure


def _build_ready(inputs: ConditionInputs) -> ConditionValue:
    serving, blocking_failure = inputs.serving, _find_blocking_failure(inputs)
    if blocking_failure is not None:
        return ConditionValue("Ready", "False", blocking_failure.reason, blocking_failure.message)
    if inputs.replicas == 0:
        if inputs.is_suspended:
            return ConditionValue("Ready", "True", SUSPENDED, "spec.suspend is true: no pod runs")
        cause = "its autoscaler sees no work" if inputs.is_autoscaled else "spec.replicas is 0"
        return ConditionValue("Ready", "True", SCALED_TO_ZERO, f"{cause}: no pod runs")
    replicas = inputs.serving_replicas
    available = serving.available if serving is not None else 0
    if available >= replicas:
        return ConditionValue("Ready", "True", *_describe_serving(inputs, available))
    failure = inputs.apply_failure or (None if inputs.rollout.is_waiting else inputs.failure)
    if failure is not None:
        return ConditionValue("Ready", "False", failure.reason, failure.message)
    reason = PREPARING if inputs.activity else PROGRESSING
    return ConditionValue("Ready", "False", reason, _describe_progress(inputs, available, replicas))


def _build_progress(inputs: ConditionInputs) -> ConditionValue | None:
    """Return how far the resource is from what the manifest asks for; None where nothing is left to do."""
    progress, failure = _build_rollout_progress(inputs), inputs.apply_failure
    if failure is None:
        return progress
    if progress is None or progress.type != "Stalled":
        kind: Literal["Reconciling", "Stalled"] = "Reconciling" if failure.is_transient else "Stalled"
        return ConditionValue(kind, "True", failure.reason, failure.message)
    message = (
        f"{progress.message}. The other changes of the manifest fail: {failure.reason}: {failure.message}"
    )
    return replace(progress, message=message)


def _build_rollout_progress(inputs: ConditionInputs) -> ConditionValue | None:
    """Return how far the pods are from what the manifest asks for; None where they are all that is asked for."""
    if inputs.blocked_change is not None and inputs.blocked_change.state == "Refused":
        return ConditionValue("Stalled", "True", VECTOR_SPACE_CHANGE, _describe_stalled(inputs))
    if not inputs.rollout.is_done:
        return _build_pod_progress(inputs)
    if inputs.claim_failure is not None:
        failure = inputs.claim_failure
        return ConditionValue("Reconciling", "True", failure.reason, failure.message)
    return None


def _build_pod_progress(inputs: ConditionInputs) -> ConditionValue:
    failure = inputs.failure
    if failure is not None:
        return ConditionValue(
            "Reconciling" if failure.is_transient else "Stalled", "True", failure.reason, failure.message
        )
    if inputs.rollout.state == "Checking":
        checked = sum(pod.self_check is not None for pod in inputs.pods)
        message = f"{checked} of {len(inputs.pods)} new pods have passed the self-check"
        return ConditionValue("Reconciling", "True", CHECKING, message)
    ready = sum(pod.phase == "Ready" for pod in inputs.pods)
    reason = PREPARING if inputs.activity else PROGRESSING
    return ConditionValue("Reconciling", "True", reason, _describe_progress(inputs, ready, inputs.replicas))


def _describe_serving(inputs: ConditionInputs, available: int) -> tuple[str, str]:
    """Return the reason and the message while all pods are available."""
    if inputs.blocked_change is not None:
        description = describe_blocked_change(inputs.blocked_change)
        reason = PREVIOUS_SERVING if inputs.blocked_change.state == "Refused" else HELD
        return reason, f"revision {inputs.rollout.serving} keeps serving; {description}"
    if inputs.rollout.state == "Held":
        return HELD, _describe_held(inputs)
    if inputs.rollout.is_waiting:
        return PREVIOUS_SERVING, _describe_previous(inputs)
    return SERVING, f"{available} of {inputs.serving_replicas} replicas are ready"


def _describe_held(inputs: ConditionInputs) -> str:
    rollout = inputs.rollout
    return (
        f"{rollout.space} is served; {rollout.desired_space} is ready at {inputs.held_url} and takes over when "
        "spec.rollout.hold is false"
    )


def _describe_stalled(inputs: ConditionInputs) -> str:
    """Describe the blocked change, and what keeps the other changes of the manifest from being done."""
    if inputs.blocked_change is None:
        raise ValueError("no change is blocked")
    message = describe_blocked_change(inputs.blocked_change)
    if inputs.failure is None:
        return message
    return f"{message}. The other changes of the manifest fail: {inputs.failure.reason}: {inputs.failure.message}"


def _describe_previous(inputs: ConditionInputs) -> str:
    rollout = inputs.rollout
    message = f"revision {rollout.serving} keeps serving until revision {rollout.desired} is complete"
    if inputs.failure is None:
        return message
    return f"{message}, which fails: {inputs.failure.reason}: {inputs.failure.message}"


def _describe_progress(inputs: ConditionInputs, ready: int, replicas: int) -> str:
    message = f"{ready} of {replicas} replicas are ready"
    if inputs.activity:
        return f"{message}; {inputs.activity}"
    fetching = sum(pod.phase == "Fetching" for pod in inputs.pods)
    loading = sum(pod.phase == "Loading" for pod in inputs.pods)
    waiting = sum(pod.phase == "Pending" for pod in inputs.pods)
    steps = [
        *([f"{fetching} fetching the model"] if fetching else []),
        *([f"{loading} loading it"] if loading else []),
        *([f"{waiting} waiting to start"] if waiting else []),
    ]
    return f"{message} ({', '.join(steps)})" if steps else message
