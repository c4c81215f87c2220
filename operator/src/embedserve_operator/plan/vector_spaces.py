"""Finds vector spaces: which one a revision makes, which ones were served before, and which
revisions of those are retained.

All of it is found again in each pass, from what pods and Deployments say; the published status only adds what
nobody else knows any more. So an operator that dies between any two writes, and a status that is lost, leave nothing
behind that the next pass does not find.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from embedserve_operator.api.times import parse_duration, parse_moment
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.state.models import ModelReport
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.pods import PodState

MAX_PREVIOUS_SPACES = 10
MAX_RETAINED_REVISIONS = 3
MAX_COMPUTES = 10


@dataclass(frozen=True, slots=True)
class PreviousVectorSpace:
    """Describes a vector space that was served before. Times are seconds since 1970."""

    space: str
    revision: str
    dimensions: int | None
    size_bytes: int | None
    replaced_at: int


@dataclass(frozen=True, slots=True)
class RetainedRevision:
    """Says that the pods of a previous vector space stay, and until when."""

    previous: PreviousVectorSpace
    until: int


def find_vector_space(observed: ObservedState, revision: str) -> str | None:
    """Return the vector space that a revision makes; None as long as it is not known.

    The pods of a branch that has moved may disagree: what was known before holds as long as a ready pod
    makes it.
    """
    pods = observed.list_pods(revision)
    before = _find_recorded_space(observed, revision)
    for group in ([pod for pod in pods if pod.phase == "Ready"], pods):
        said = [pod.space for pod in group if pod.space is not None]
        if said:
            return before if before in said else said[0]
    if before is None and observed.fetched is not None and observed.fetched.revision == revision:
        return observed.fetched.report.vector_space
    return before


def find_former_names(observed: ObservedState, revision: str) -> frozenset[str]:
    """Return what releases before `vs2-` called the vector space that a revision makes, as its pods or a Job report it.

    While a service is upgraded, pods of both releases are ready and name one vector space by two identities.
    """
    space = find_vector_space(observed, revision)
    named = {pod.former_space for pod in observed.list_pods(revision) if pod.space == space}
    if observed.fetched is not None and observed.fetched.report.vector_space == space:
        named.add(observed.fetched.report.former_vector_space)
    return frozenset(name for name in named if name is not None)


def _find_recorded_space(observed: ObservedState, revision: str) -> str | None:
    deployment = observed.find_deployment(revision)
    if deployment is not None and deployment.space:
        return deployment.space
    status = observed.resource.status
    for published in (status.vector_space, *(status.vector_space.previous if status.vector_space else ())):
        if published is not None and published.revision == revision:
            return published.id
    if status.rollout is not None and status.rollout.revision == revision:
        return status.rollout.vector_space
    return None


def find_model_report(observed: ObservedState, revision: str) -> ModelReport | None:
    """Return what the pods of a revision report about their model, ready pods first.

    Before there are pods, return what a Job reported.
    """
    pods = sorted(observed.list_pods(revision), key=lambda pod: (pod.phase != "Ready", pod.name))
    fetched = observed.fetched.report if observed.fetched and observed.fetched.revision == revision else None
    return next((pod.report for pod in pods if pod.report is not None), fetched)


def find_dimensions(observed: ObservedState, revision: str) -> int | None:
    """Return the length of the vectors of a revision, as its pods report it."""
    for pod in observed.list_pods(revision):
        if pod.self_check is not None and pod.self_check.dimensions is not None:
            return pod.self_check.dimensions
    report = find_model_report(observed, revision)
    return report.dimensions if report is not None else None


def find_compute_precisions(observed: ObservedState, revision: str) -> tuple[str, ...]:
    """Return the precisions that a revision computes its vectors in, as its pods report them, each once."""
    checks = [pod.self_check for pod in observed.list_pods(revision) if pod.phase == "Ready"]
    found = {
        check.compute_precision
        for check in checks
        if check is not None and check.compute_precision is not None
    }
    return tuple(sorted(found))[:MAX_COMPUTES]


def find_min_cosine(observed: ObservedState, revision: str) -> float | None:
    """Return the least cosine to a more exact precision that the pods of a revision report."""
    checks = [pod.self_check for pod in observed.list_pods(revision) if pod.phase == "Ready"]
    return min(
        (check.min_cosine for check in checks if check is not None and check.min_cosine is not None),
        default=None,
    )


def find_previous_spaces(observed: ObservedState, serving: str) -> tuple[PreviousVectorSpace, ...]:
    """Return the previous vector spaces, the latest first, once the Service selects `serving`."""
    now = find_vector_space(observed, serving)
    former = find_former_names(observed, serving)
    published = {one.space: one for one in _find_published_spaces(observed, serving, now)}
    found = published | {
        one.space: one for one in _find_replaced_deployments(observed, serving, now, published)
    }
    others = [one for one in found.values() if one.space not in former]
    # Of equal times, the one that is replaced now is the latest.
    latest = sorted(others, key=lambda one: (-one.replaced_at, one.revision != observed.serving_revision))
    return tuple(latest[:MAX_PREVIOUS_SPACES])


def _find_replaced_deployments(
    observed: ObservedState, serving: str, now: str | None, published: Mapping[str, PreviousVectorSpace]
) -> list[PreviousVectorSpace]:
    """Return the previous vector spaces whose Deployments exist, the latest time of each last: the one that is replaced
    in this pass, and those that say when they were.
    """
    found = []
    for one in observed.deployments:
        replaced = parse_moment(one.replaced_at)
        if replaced is None and one.revision == observed.serving_revision:
            replaced = observed.now
        space = find_vector_space(observed, one.revision)
        if one.revision == serving or replaced is None or space is None or space == now:
            continue
        before = published.get(space)
        dimensions, report = (
            find_dimensions(observed, one.revision),
            find_model_report(observed, one.revision),
        )
        size = report.size_bytes if report is not None else one.model_bytes
        if before is not None:
            dimensions, size = dimensions or before.dimensions, size or before.size_bytes
        found.append(PreviousVectorSpace(space, one.revision, dimensions, size, replaced))
    return sorted(found, key=lambda one: one.replaced_at)


def _find_published_spaces(
    observed: ObservedState, serving: str, now: str | None
) -> tuple[PreviousVectorSpace, ...]:
    """Return the previous vector spaces that the status tells of."""
    published = observed.resource.status.vector_space
    if published is None:
        return ()
    found = []
    passed = published.revision != serving or now is not None
    if published.id is not None and published.revision is not None and passed and published.id != now:
        model = observed.resource.status.model
        size = model.size_bytes if model is not None else None
        found.append(
            PreviousVectorSpace(published.id, published.revision, published.dimensions, size, observed.now)
        )
    for one in published.previous:
        replaced = parse_moment(one.replaced_at)
        if one.id not in {now, *(previous.space for previous in found)}:
            since = observed.now if replaced is None else replaced
            found.append(PreviousVectorSpace(one.id, one.revision, one.dimensions, one.size_bytes, since))
    return tuple(found)


def find_retained_revisions(
    observed: ObservedState,
    spec: EmbeddingServiceSpec,
    known: tuple[PreviousVectorSpace, ...],
    *,
    others: frozenset[str],
) -> tuple[RetainedRevision, ...]:
    """Return the previous vector spaces whose Deployments stay so that the user can go back.

    `others` are revisions that stay anyway.
    """
    if spec.rollout.on_new_vector_space == "InPlace":
        return ()
    time = parse_duration(spec.rollout.keep_previous)
    found = [
        RetainedRevision(previous, previous.replaced_at + time)
        for previous in known
        if previous.revision not in others
        and observed.find_deployment(previous.revision) is not None
        and observed.now < previous.replaced_at + time
    ]
    return tuple(found[:MAX_RETAINED_REVISIONS])


def find_unexpected_pods(observed: ObservedState, revision: str) -> tuple[PodState, ...]:
    """Return the ready pods of a revision that make another vector space than the revision, since its source
    has moved.
    """
    space = find_vector_space(observed, revision)
    names = {space, *find_former_names(observed, revision)}
    return tuple(
        pod
        for pod in observed.list_pods(revision)
        if pod.phase == "Ready"
        and pod.space is not None
        and pod.space not in names
        and (space is None or pod.former_space != space)
    )
