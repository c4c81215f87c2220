"""Decides what the pods are told, what they are asked, and what they are labelled with."""

from __future__ import annotations

from embedserve_operator.plan.actions import PodLabel, PodMessage, SelfCheckRequest
from embedserve_operator.plan.rollout import DesiredRevision, Rollout, find_candidates
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.pods import PodState


def plan_messages(observed: ObservedState, rollout: Rollout) -> tuple[PodMessage, ...]:
    """Return what the pods have to know before the Service is written: the vector space that the service's
    name stands for.

    A pod that makes another vector space passes on requests that come by that name. The pods that are going
    to answer these requests are told first, since they may have been told the opposite before. Pods of a
    model that has never served are told nothing, and answer themselves.
    """
    space = rollout.space
    if space is None or not _has_several_models(observed, rollout):
        return ()
    is_switching = observed.serving_revision not in (None, rollout.serving)
    messages = [
        PodMessage(pod, space, is_required=is_switching and _takes_over(pod, rollout))
        for pod in observed.pods
        if _can_receive_messages(pod) and pod.announced_space != space and not _is_unannounced(pod, rollout)
    ]
    return tuple(sorted(messages, key=lambda message: not message.is_required))


def _can_receive_messages(pod: PodState) -> bool:
    return pod.phase == "Ready" and bool(pod.address) and pod.space is not None


def _takes_over(pod: PodState, rollout: Rollout) -> bool:
    """Return whether a pod is one of those that answer by the service's name from now on."""
    return pod.revision == rollout.serving and pod.space == rollout.space


def _is_unannounced(pod: PodState, rollout: Rollout) -> bool:
    """Return whether a pod is of a model that waits and has never served."""
    return rollout.is_waiting and pod.revision == rollout.desired and pod.announced_space is None


def _has_several_models(observed: ObservedState, rollout: Rollout) -> bool:
    """Return whether there are pods of more than one model; a single one has nobody to pass anything on to."""
    spaces = {pod.space for pod in observed.pods if pod.space is not None}
    return bool(
        rollout.previous_spaces or rollout.is_waiting or observed.resource.status.rollout or len(spaces) > 1
    )


def plan_self_checks(
    observed: ObservedState, rollout: Rollout, desired: DesiredRevision
) -> tuple[SelfCheckRequest, ...]:
    """Return the pods whose self-check must pass before they take over, and of those that serve one of each
    template that has not reported its precision.
    """
    if not rollout.is_waiting:
        return _plan_first_checks(observed, rollout.serving)
    return tuple(
        SelfCheckRequest(pod)
        for pod in find_candidates(observed, desired)
        if pod.address and (pod.self_check is None or pod.self_check.problem)
    )


def _plan_first_checks(observed: ObservedState, serving: str) -> tuple[SelfCheckRequest, ...]:
    pods = [pod for pod in observed.list_pods(serving) if pod.phase == "Ready" and pod.address]
    # A pod that did not answer, or has yet to be brought another key of the operator, is asked again.
    checked_templates = {
        pod.template_hash for pod in pods if pod.self_check is not None and not pod.self_check.problem
    }
    first = {pod.template_hash: pod for pod in reversed(pods) if pod.template_hash not in checked_templates}
    return tuple(SelfCheckRequest(pod) for pod in first.values())


def plan_pod_labels(observed: ObservedState) -> tuple[PodLabel, ...]:
    """Return the pods that are to be labelled with their vector space, by which the Service of the space finds
    them.
    """
    return tuple(
        PodLabel(pod, pod.space)
        for pod in observed.pods
        if pod.phase != "Terminating" and pod.space is not None and pod.space_label != pod.space
    )
