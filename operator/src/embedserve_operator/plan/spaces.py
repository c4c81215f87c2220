"""Vector spaces: which one a revision makes, which ones were served before, and which of those are still kept.

All of it is found anew in each pass, from what pods and Deployments say and from the published status. So an operator
that dies between any two writes leaves nothing that the next one does not find.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.times import duration_of, seconds_of
from embedserve_operator.world import ModelReport, PodFacts, World

MOST_REMEMBERED = 10
MOST_KEPT = 3


@dataclass(frozen=True, slots=True)
class Former:
    """A vector space that had the service's name before. Times are seconds since 1970."""

    space: str
    revision: str
    dimensions: int | None
    size_bytes: int | None
    replaced_at: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A former space whose pods stay."""

    former: Former
    until: int


def space_of(world: World, revision: str) -> str | None:
    """The vector space that a revision makes; None while that is not known.

    The pods of a branch that has moved may disagree: what was known before holds as long as one that is ready makes it.
    """
    pods = world.pods_of(revision)
    before = _known_before(world, revision)
    for group in ([pod for pod in pods if pod.phase == "Ready"], pods):
        said = [pod.space for pod in group if pod.space is not None]
        if said:
            return before if before in said else said[0]
    if before is None and world.fetched is not None and world.fetched.revision == revision:
        return world.fetched.report.vector_space
    return before


def _known_before(world: World, revision: str) -> str | None:
    deployment = world.deployment(revision)
    if deployment is not None and deployment.space:
        return deployment.space
    status = world.resource.status
    for published in (status.vector_space, *(status.vector_space.previous if status.vector_space else ())):
        if published is not None and published.revision == revision:
            return published.id
    if status.rollout is not None and status.rollout.revision == revision:
        return status.rollout.vector_space
    return None


def report_of(world: World, revision: str) -> ModelReport | None:
    """What the pods of a revision say about their model; those that serve are asked first. Before there are pods, what
    a Job said."""
    pods = sorted(world.pods_of(revision), key=lambda pod: (pod.phase != "Ready", pod.name))
    fetched = world.fetched.report if world.fetched and world.fetched.revision == revision else None
    return next((pod.report for pod in pods if pod.report is not None), fetched)


def dimensions_of(world: World, revision: str) -> int | None:
    """Length of the vectors of a revision, as its pods say."""
    for pod in world.pods_of(revision):
        if pod.check is not None and pod.check.dimensions is not None:
            return pod.check.dimensions
    report = report_of(world, revision)
    return report.dimensions if report is not None else None


def formers(world: World, serving: str) -> tuple[Former, ...]:
    """The spaces of before, the latest first, once `serving` has the service's name."""
    published = world.resource.status.vector_space
    if published is None:
        return ()
    now = space_of(world, serving)
    found = []
    passed = published.revision != serving or now is not None
    if published.id is not None and published.revision is not None and passed and published.id != now:
        model = world.resource.status.model
        size = model.size_bytes if model is not None else None
        found.append(Former(published.id, published.revision, published.dimensions, size, world.now))
    for one in published.previous:
        replaced = seconds_of(one.replaced_at)
        if one.id not in {now, *(former.space for former in found)}:
            since = world.now if replaced is None else replaced
            found.append(Former(one.id, one.revision, one.dimensions, one.size_bytes, since))
    return tuple(found[:MOST_REMEMBERED])


def kept(
    world: World, spec: EmbeddingServiceSpec, known: tuple[Former, ...], *, others: frozenset[str]
) -> tuple[Kept, ...]:
    """The former spaces whose Deployments stay for a way back. `others`: revisions that stay anyway."""
    if spec.suspend or spec.rollout.on_new_vector_space == "InPlace":
        return ()
    time = duration_of(spec.rollout.keep_previous)
    found = [
        Kept(former, former.replaced_at + time)
        for former in known
        if former.revision not in others
        and world.deployment(former.revision) is not None
        and world.now < former.replaced_at + time
    ]
    return tuple(found[:MOST_KEPT])


def strangers(world: World, revision: str) -> tuple[PodFacts, ...]:
    """Ready pods of a revision that make another space than the revision: its source has moved on."""
    space = space_of(world, revision)
    return tuple(
        pod
        for pod in world.pods_of(revision)
        if pod.phase == "Ready" and pod.space is not None and pod.space != space
    )
