"""Builds the parts of the status that describe what is served: model, vector space, and the rollout of another one."""

from __future__ import annotations

from embedserve_operator.api.status import ModelStatus, PreviousSpace, RolloutStatus, VectorSpace
from embedserve_operator.api.times import format_moment
from embedserve_operator.manifests import service
from embedserve_operator.manifests.metadata import format_selector
from embedserve_operator.manifests.runtime_config import describe_source
from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.vector_spaces import (
    PreviousVectorSpace,
    RetainedRevision,
    find_compute_precisions,
    find_dimensions,
    find_min_cosine,
    find_model_report,
)
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.resource import Resource


def build_model_status(inputs: PlanInput, rollout: Rollout) -> ModelStatus | None:
    """Return what is known about the model of the serving revision."""
    resource, report = inputs.observed.resource, find_model_report(inputs, rollout.serving)
    is_published = resource.status.selector == format_selector(resource, rollout.serving)
    published = resource.status.model if is_published else None
    # The spec names the source of the desired model, which another revision does not serve.
    declared = None if rollout.is_waiting else describe_source(inputs.spec.model.source)
    source = declared or (published.source if published is not None else None)
    if report is not None:
        return ModelStatus(
            source=source or report.source,
            revision=report.revision,
            digest=report.digest,
            size_bytes=report.size_bytes,
            licence=report.licence,
            guesses_pooling=report.guesses_pooling or None,
            adapter_tasks=report.adapter_tasks or None,
        )
    # Between the end of one pod and the report of the next, nothing new is known about the revision.
    if published is not None:
        return published.model_copy(update={"fetching": None})
    return ModelStatus(source=source) if source is not None else None


def build_vector_space(inputs: PlanInput, rollout: Rollout) -> VectorSpace | None:
    """Return the vector space that is served, with the previous ones; None where neither is known."""
    observed = inputs.observed
    previous = tuple(
        _build_previous_space(observed.resource, previous, rollout.retained)
        for previous in rollout.previous_spaces
    )
    space = rollout.space
    if space is None:
        return VectorSpace(previous=previous) if previous else None
    # While no pod reports it, what is published about the same vector space still holds.
    published = _find_published_space(observed, space)
    dimensions = find_dimensions(inputs, rollout.serving)
    report = find_model_report(inputs, rollout.serving)
    compute = find_compute_precisions(inputs, rollout.serving) or None
    min_cosine = find_min_cosine(inputs, rollout.serving)
    if compute is None and published.revision == rollout.serving:
        compute, min_cosine = published.compute, published.min_cosine
    return VectorSpace(
        id=space,
        compute=compute,
        min_cosine=min_cosine,
        dimensions=published.dimensions if dimensions is None else dimensions,
        outputs=(report.outputs if report is not None else ()) or published.outputs,
        revision=rollout.serving,
        since=published.since or format_moment(observed.now),
        url=service.format_url(observed.resource, space),
        previous=previous,
    )


def _find_published_space(observed: ObservedState, space: str) -> VectorSpace:
    """Return what is published about a vector space as the one that is served; nothing where another one was."""
    published = observed.resource.status.vector_space
    return published if published is not None and published.id == space else VectorSpace()


def _build_previous_space(
    resource: Resource, previous: PreviousVectorSpace, retained: tuple[RetainedRevision, ...]
) -> PreviousSpace:
    until = next((revision.until for revision in retained if revision.previous == previous), None)
    return PreviousSpace(
        id=previous.space,
        dimensions=previous.dimensions,
        revision=previous.revision,
        size_bytes=previous.size_bytes,
        replaced_at=format_moment(previous.replaced_at),
        kept_until=None if until is None else format_moment(until),
        url=None if until is None else service.format_url(resource, previous.space),
    )


def build_rollout_status(inputs: PlanInput, rollout: Rollout) -> RolloutStatus | None:
    """Return the status of the revision that is asked for, while another one serves."""
    observed = inputs.observed
    if rollout.state == "Done":
        return None
    space, report = rollout.desired_space, find_model_report(inputs, rollout.desired)
    published = observed.resource.status.rollout
    if published is not None and published.revision != rollout.desired:
        published = None
    dimensions = find_dimensions(inputs, rollout.desired)
    return RolloutStatus(
        revision=rollout.desired,
        state=rollout.state,
        vector_space=space,
        dimensions=published.dimensions if dimensions is None and published is not None else dimensions,
        size_bytes=report.size_bytes
        if report is not None
        else published.size_bytes
        if published is not None
        else None,
        url=None if space is None or rollout.is_blocked else service.format_url(observed.resource, space),
    )
