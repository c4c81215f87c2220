"""What there is to say to the pods and to ask them, and what they are labelled with."""

from __future__ import annotations

from embedserve_operator.plan.outcome import Notice, PodLabel, Question
from embedserve_operator.plan.rollout import Rollout, Wanted, candidates
from embedserve_operator.world import PodFacts, World


def notices(world: World, rollout: Rollout) -> tuple[Notice, ...]:
    """What the pods have to know before the Service is written: the vector space that the service's name stands for.

    A pod that makes another one passes requests by that name on. Those that are to answer them come first, since they
    may have been told the opposite before. Pods of a model that has never served know nothing, and answer themselves.
    """
    space = rollout.space
    if space is None or not _concerns_anybody(world, rollout):
        return ()
    moves = world.serving_revision not in (None, rollout.serving)
    found = [
        Notice(pod, space, must=moves and pod.revision == rollout.serving and pod.space == space)
        for pod in world.pods
        if _can_hear(pod)
        and pod.told != space
        and not (rollout.waits and pod.revision == rollout.wanted and pod.told is None)
    ]
    return tuple(sorted(found, key=lambda notice: not notice.must))


def _can_hear(pod: PodFacts) -> bool:
    return pod.phase == "Ready" and bool(pod.address) and pod.space is not None


def _concerns_anybody(world: World, rollout: Rollout) -> bool:
    """One model that has always been alone has nobody to pass anything on to."""
    spaces = {pod.space for pod in world.pods if pod.space is not None}
    return bool(rollout.formers or rollout.waits or world.resource.status.rollout or len(spaces) > 1)


def questions(world: World, rollout: Rollout, wanted: Wanted) -> tuple[Question, ...]:
    """Pods that have to prove their vectors before they take over."""
    if not rollout.waits:
        return ()
    return tuple(
        Question(pod)
        for pod in candidates(world, wanted)
        if pod.address and (pod.check is None or pod.check.problem)
    )


def labels(world: World) -> tuple[PodLabel, ...]:
    """Pods that are to be labelled with what they make; by that label the Service of a space finds them."""
    return tuple(
        PodLabel(pod, pod.space)
        for pod in world.pods
        if pod.phase != "Ending" and pod.space is not None and pod.space_label != pod.space
    )
