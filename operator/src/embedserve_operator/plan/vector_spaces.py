"""Finds vector spaces: which one a revision makes, which ones were served before, and which
revisions of those are retained.

Each pass finds all of it anew from what pods and Deployments say; the published status only adds what is recorded
nowhere else. So the next pass finds everything again after an operator died between any two writes, or a status was
lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from embedserve_operator.api.times import parse_duration, parse_moment
from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.state.models import ModelReport
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.pods import PodState

MAX_PREVIOUS_SPACES = 10
MAX_RETAINED_REVISIONS = 3
MAX_COMPUTES = 10


@dataclass(frozen=True, slots=True)
class PreviousVectorSpace:
    """A vector space that was served before. Times are seconds since 1970."""

    space: str
    revision: str
    dimensions: int | None
    size_bytes: int | None
    replaced_at: int


@dataclass(frozen=True, slots=True)
class RetainedRevision:
    """A revision of a previous vector space whose pods stay for a time."""

    previous: PreviousVectorSpace
    until: int


def find_vector_space(inputs: PlanInput, revision: str) -> str | None:
    """Return the vector space that a revision makes; None as long as it is not known.

    The pods of a branch that has moved may disagree: what was known before holds as long as a ready pod
    makes it.
    """
    pods, fetched = inputs.observed.list_pods(revision), inputs.fetched
    recorded = _find_recorded_space(inputs.observed, revision)
    for group in ([pod for pod in pods if pod.phase == "Ready"], pods):
        spaces = [pod.space for pod in group if pod.space is not None]
        if spaces:
            return recorded if recorded in spaces else spaces[0]
    if recorded is None and fetched is not None and fetched.revision == revision:
        return fetched.report.vector_space
    return recorded


def find_former_names(inputs: PlanInput, revision: str) -> frozenset[str]:
    """Return what releases before `vs2-` called the vector space that a revision makes, as its pods or a Job report it.

    While a service is upgraded, pods of both releases are ready and name one vector space by two identities.
    """
    space, fetched = find_vector_space(inputs, revision), inputs.fetched
    names = {pod.former_space for pod in inputs.observed.list_pods(revision) if pod.space == space}
    if fetched is not None and fetched.report.vector_space == space:
        names.add(fetched.report.former_vector_space)
    return frozenset(name for name in names if name is not None)


def _find_recorded_space(observed: ObservedState, revision: str) -> str | None:
    """Return the vector space of a revision as its Deployment or the published status names it."""
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


def find_model_report(inputs: PlanInput, revision: str) -> ModelReport | None:
    """Return what the pods of a revision report about their model, ready pods first.

    Before there are pods, return what a Job reported.
    """
    pods = sorted(inputs.observed.list_pods(revision), key=lambda pod: (pod.phase != "Ready", pod.name))
    fetched = inputs.fetched
    from_job = fetched.report if fetched is not None and fetched.revision == revision else None
    return next((pod.report for pod in pods if pod.report is not None), from_job)


def find_dimensions(inputs: PlanInput, revision: str) -> int | None:
    """Return the length of the vectors of a revision, as its pods report it."""
    for pod in inputs.observed.list_pods(revision):
        if pod.self_check is not None and pod.self_check.dimensions is not None:
            return pod.self_check.dimensions
    report = find_model_report(inputs, revision)
    return report.dimensions if report is not None else None


def find_compute_precisions(inputs: PlanInput, revision: str) -> tuple[str, ...]:
    """Return the precisions that a revision computes its vectors in, as its pods report them, each once."""
    checks = [pod.self_check for pod in inputs.observed.list_pods(revision) if pod.phase == "Ready"]
    precisions = {
        check.compute_precision
        for check in checks
        if check is not None and check.compute_precision is not None
    }
    return tuple(sorted(precisions))[:MAX_COMPUTES]


def find_min_cosine(inputs: PlanInput, revision: str) -> float | None:
    """Return the least cosine to a more exact precision that the pods of a revision report."""
    checks = [pod.self_check for pod in inputs.observed.list_pods(revision) if pod.phase == "Ready"]
    return min(
        (check.min_cosine for check in checks if check is not None and check.min_cosine is not None),
        default=None,
    )


def find_previous_spaces(inputs: PlanInput, serving: str) -> tuple[PreviousVectorSpace, ...]:
    """Return the previous vector spaces, the latest first, once the Service selects `serving`."""
    current, serving_revision = find_vector_space(inputs, serving), inputs.observed.serving_revision
    former_names = find_former_names(inputs, serving)
    published = {
        previous.space: previous for previous in _find_published_spaces(inputs.observed, serving, current)
    }
    replaced = {
        previous.space: previous
        for previous in _find_replaced_deployments(inputs, serving, current, published)
    }
    previous_spaces = [
        previous for previous in (published | replaced).values() if previous.space not in former_names
    ]
    # Of equal times, the one that is replaced now is the latest.
    latest = sorted(
        previous_spaces, key=lambda previous: (-previous.replaced_at, previous.revision != serving_revision)
    )
    return tuple(latest[:MAX_PREVIOUS_SPACES])


def _find_replaced_deployments(
    inputs: PlanInput, serving: str, current: str | None, published: Mapping[str, PreviousVectorSpace]
) -> list[PreviousVectorSpace]:
    """Return the previous vector spaces whose Deployments exist, the latest time of each last: the one that is replaced
    in this pass, and those that say when they were. `current` is the vector space of `serving`.
    """
    observed = inputs.observed
    previous_spaces = []
    for deployment in observed.deployments:
        revision = deployment.revision
        replaced_at = parse_moment(deployment.replaced_at)
        if replaced_at is None and revision == observed.serving_revision:
            replaced_at = observed.now
        space = find_vector_space(inputs, revision)
        if revision == serving or replaced_at is None or space is None or space == current:
            continue
        before = published.get(space)
        dimensions, report = find_dimensions(inputs, revision), find_model_report(inputs, revision)
        size = report.size_bytes if report is not None else deployment.file_bytes
        if before is not None:
            dimensions, size = dimensions or before.dimensions, size or before.size_bytes
        previous_spaces.append(PreviousVectorSpace(space, revision, dimensions, size, replaced_at))
    return sorted(previous_spaces, key=lambda previous: previous.replaced_at)


def _find_published_spaces(
    observed: ObservedState, serving: str, current: str | None
) -> tuple[PreviousVectorSpace, ...]:
    """Return the previous vector spaces that the published status lists; `current` is that of `serving`."""
    published = observed.resource.status.vector_space
    if published is None:
        return ()
    replaced = _find_replaced_space(observed, serving, current)
    spaces = {} if replaced is None else {replaced.space: replaced}
    for previous in published.previous:
        replaced_at = parse_moment(previous.replaced_at)
        if previous.id == current or previous.id in spaces:
            continue
        spaces[previous.id] = PreviousVectorSpace(
            previous.id,
            previous.revision,
            previous.dimensions,
            previous.size_bytes,
            observed.now if replaced_at is None else replaced_at,
        )
    return tuple(spaces.values())


def _find_replaced_space(
    observed: ObservedState, serving: str, current: str | None
) -> PreviousVectorSpace | None:
    """Return the vector space that the status publishes as served where `serving` replaces it now; None where it still
    is the one that is served, or may be.
    """
    published, model = observed.resource.status.vector_space, observed.resource.status.model
    if published is None or published.id is None or published.revision is None:
        return None
    is_served = published.revision == serving if current is None else published.id == current
    if is_served:
        return None
    size = model.size_bytes if model is not None else None
    return PreviousVectorSpace(published.id, published.revision, published.dimensions, size, observed.now)


def find_retained_revisions(
    inputs: PlanInput, previous_spaces: tuple[PreviousVectorSpace, ...], *, staying: frozenset[str]
) -> tuple[RetainedRevision, ...]:
    """Return the previous vector spaces whose Deployments stay so that the user can go back.

    `staying` are revisions that stay anyway.
    """
    observed, rollout = inputs.observed, inputs.spec.rollout
    if rollout.on_new_vector_space == "InPlace":
        return ()
    seconds = parse_duration(rollout.keep_previous)
    retained = [
        RetainedRevision(previous, previous.replaced_at + seconds)
        for previous in previous_spaces
        if previous.revision not in staying
        and observed.find_deployment(previous.revision) is not None
        and observed.now < previous.replaced_at + seconds
    ]
    return tuple(retained[:MAX_RETAINED_REVISIONS])


def find_unexpected_pods(inputs: PlanInput, revision: str) -> tuple[PodState, ...]:
    """Return the ready pods of a revision that make another vector space than the revision, since its source
    has moved.
    """
    space = find_vector_space(inputs, revision)
    names = frozenset({space, *find_former_names(inputs, revision)})
    pods = inputs.observed.list_pods(revision)
    return tuple(pod for pod in pods if pod.phase == "Ready" and _makes_another_space(pod, space, names))


def _makes_another_space(pod: PodState, space: str | None, names: frozenset[str | None]) -> bool:
    """Return whether a pod makes another vector space than `space`, which has these `names`."""
    if pod.space is None or pod.space in names:
        return False
    return space is None or pod.former_space != space
