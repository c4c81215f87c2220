"""Builds the part of the status that describes what is served: numbers, address, model, vector
space.
"""

from __future__ import annotations

from embedserve_operator.api.status import (
    Endpoint,
    HardwareStatus,
    PreviousSpace,
    RolloutStatus,
    ServedModel,
    VectorSpace,
)
from embedserve_operator.api.times import format_moment
from embedserve_operator.manifests import service
from embedserve_operator.manifests.metadata import build_selector
from embedserve_operator.plan.conditions import build_pooling_conditions
from embedserve_operator.plan.plan import PlannedCondition, PlannedStatus
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
from embedserve_operator.state.models import ModelReport
from embedserve_operator.state.resource import Resource


def build_serving_status(
    inputs: PlanInput,
    rollout: Rollout,
    source: str | None,
    hardware: HardwareStatus,
    conditions: tuple[PlannedCondition, ...],
) -> PlannedStatus:
    """Return the status while the Service selects the revision that `rollout` names.

    `source` says where the desired model comes from; it is None when another revision is served.
    """
    observed, serving = inputs.observed, rollout.serving
    deployment = observed.find_deployment(serving)
    selection = ",".join(
        f"{key}={value}" for key, value in build_selector(observed.resource, serving).items()
    )
    report = find_model_report(inputs, serving)
    model = _build_served_model(report, observed.resource, selection, source)
    declared = observed.resource.spec
    grpc = service.format_grpc_address(observed.resource, declared.service) if declared is not None else None
    return PlannedStatus(
        conditions=(*conditions, *build_pooling_conditions(model)),
        replicas=deployment.replicas if deployment is not None else 0,
        ready_replicas=deployment.ready if deployment is not None else 0,
        selector=selection,
        endpoint=Endpoint(url=service.format_url(observed.resource), grpc=grpc),
        vector_space=_build_vector_space(inputs, rollout),
        model=model,
        hardware=hardware,
    )


def keep_published_status(resource: Resource, conditions: tuple[PlannedCondition, ...]) -> PlannedStatus:
    """Return the published status with other conditions."""
    status = resource.status
    model = status.model.model_copy(update={"fetching": None}) if status.model is not None else None
    return PlannedStatus(
        conditions=(*conditions, *build_pooling_conditions(model)),
        replicas=status.replicas or 0,
        ready_replicas=status.ready_replicas or 0,
        selector=status.selector,
        endpoint=status.endpoint,
        vector_space=status.vector_space,
        rollout=status.rollout,
        model=model,
        fetch=status.fetch,
        conversion=status.conversion,
        hardware=status.hardware,
    )


def _build_served_model(
    report: ModelReport | None, resource: Resource, selection: str, source: str | None
) -> ServedModel | None:
    known = resource.status.model if resource.status.selector == selection else None
    name = source or (known.source if known is not None else None)
    if report is not None:
        return ServedModel(
            source=name or report.source,
            revision=report.revision,
            digest=report.digest,
            size_bytes=report.size_bytes,
            licence=report.licence,
            guesses_pooling=report.guesses_pooling or None,
        )
    # Between the end of one pod and the report of the next, nothing new is known about the revision.
    if known is not None:
        return known
    return ServedModel(source=name) if name is not None else None


def _build_vector_space(inputs: PlanInput, rollout: Rollout) -> VectorSpace | None:
    observed = inputs.observed
    published = observed.resource.status.vector_space
    previous = tuple(
        _build_previous_space(observed.resource, previous, rollout.retained)
        for previous in rollout.previous_spaces
    )
    space = rollout.space
    if space is None:
        return VectorSpace(previous=previous) if previous else None
    same = published is not None and published.id == space
    since = published.since if published is not None and same else None
    dimensions = find_dimensions(inputs, rollout.serving)
    report = find_model_report(inputs, rollout.serving)
    outputs = report.outputs if report is not None else ()
    if not outputs and published is not None and same:
        outputs = published.outputs
    compute = find_compute_precisions(inputs, rollout.serving) or None
    min_cosine = find_min_cosine(inputs, rollout.serving)
    if compute is None and published is not None and same and published.revision == rollout.serving:
        compute, min_cosine = published.compute, published.min_cosine
    return VectorSpace(
        id=space,
        compute=compute,
        min_cosine=min_cosine,
        dimensions=published.dimensions
        if dimensions is None and published is not None and same
        else dimensions,
        outputs=outputs,
        revision=rollout.serving,
        since=since or format_moment(observed.now),
        url=service.format_url(observed.resource, space),
        previous=previous,
    )


def _build_previous_space(
    resource: Resource, previous: PreviousVectorSpace, retained: tuple[RetainedRevision, ...]
) -> PreviousSpace:
    until = next((one.until for one in retained if one.previous == previous), None)
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
    before = observed.resource.status.rollout
    known = before if before is not None and before.revision == rollout.desired else None
    dimensions = find_dimensions(inputs, rollout.desired)
    return RolloutStatus(
        revision=rollout.desired,
        state=rollout.state,
        vector_space=space,
        dimensions=known.dimensions if dimensions is None and known is not None else dimensions,
        size_bytes=report.size_bytes
        if report is not None
        else known.size_bytes
        if known is not None
        else None,
        url=None if space is None or rollout.is_withheld else service.format_url(observed.resource, space),
    )
