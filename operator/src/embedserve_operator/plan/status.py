"""What the status says about what is served: numbers, address, model, vector space."""

from __future__ import annotations

from embedserve_operator.api.status import (
    Endpoint,
    HardwareStatus,
    PreviousSpace,
    RolloutStatus,
    ServedModel,
    VectorSpace,
)
from embedserve_operator.plan.outcome import PlannedCondition, PlannedStatus
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.spaces import Former, Kept, dimensions_of, report_of
from embedserve_operator.specs import service
from embedserve_operator.specs.metadata import selector
from embedserve_operator.times import moment_of
from embedserve_operator.world import ModelReport, Resource, World


def served(
    world: World,
    rollout: Rollout,
    source: str | None,
    hardware: HardwareStatus,
    conditions: tuple[PlannedCondition, ...],
) -> PlannedStatus:
    """The status while the Service selects the revision that `rollout` says.

    `source` is where the wanted model comes from; None when another revision is served.
    """
    serving = rollout.serving
    deployment = world.deployment(serving)
    selection = ",".join(f"{key}={value}" for key, value in selector(world.resource, serving).items())
    report = report_of(world, serving)
    model = _model(report, world.resource, selection, source)
    spec = world.resource.spec
    grpc = service.grpc_address(world.resource, spec.service) if spec is not None else None
    return PlannedStatus(
        conditions=conditions,
        replicas=deployment.replicas if deployment is not None else 0,
        ready_replicas=deployment.ready if deployment is not None else 0,
        selector=selection,
        endpoint=Endpoint(url=service.url(world.resource), grpc=grpc),
        vector_space=_vector_space(world, rollout),
        model=model,
        hardware=hardware,
    )


def unchanged(resource: Resource, conditions: tuple[PlannedCondition, ...]) -> PlannedStatus:
    """The published status with other conditions."""
    status = resource.status
    model = status.model.model_copy(update={"fetching": None}) if status.model is not None else None
    return PlannedStatus(
        conditions=conditions,
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


def _model(
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
        )
    # Between the end of one pod and the report of the next nothing new is known about the same revision.
    if known is not None:
        return known
    return ServedModel(source=name) if name is not None else None


def _vector_space(world: World, rollout: Rollout) -> VectorSpace | None:
    published = world.resource.status.vector_space
    previous = tuple(_previous(world.resource, former, rollout.kept) for former in rollout.formers)
    space = rollout.space
    if space is None:
        return VectorSpace(previous=previous) if previous else None
    same = published is not None and published.id == space
    since = published.since if published is not None and same else None
    dimensions = dimensions_of(world, rollout.serving)
    report = report_of(world, rollout.serving)
    outputs = report.outputs if report is not None else ()
    if not outputs and published is not None and same:
        outputs = published.outputs
    return VectorSpace(
        id=space,
        dimensions=published.dimensions
        if dimensions is None and published is not None and same
        else dimensions,
        outputs=outputs,
        revision=rollout.serving,
        since=since or moment_of(world.now),
        url=service.url(world.resource, space),
        previous=previous,
    )


def _previous(resource: Resource, former: Former, kept: tuple[Kept, ...]) -> PreviousSpace:
    until = next((one.until for one in kept if one.former == former), None)
    return PreviousSpace(
        id=former.space,
        dimensions=former.dimensions,
        revision=former.revision,
        size_bytes=former.size_bytes,
        replaced_at=moment_of(former.replaced_at),
        kept_until=None if until is None else moment_of(until),
        url=None if until is None else service.url(resource, former.space),
    )


def rollout_status(world: World, rollout: Rollout) -> RolloutStatus | None:
    """The revision that is asked for, while another one serves."""
    if rollout.state == "Done":
        return None
    space, report = rollout.wanted_space, report_of(world, rollout.wanted)
    before = world.resource.status.rollout
    known = before if before is not None and before.revision == rollout.wanted else None
    dimensions = dimensions_of(world, rollout.wanted)
    return RolloutStatus(
        revision=rollout.wanted,
        state=rollout.state,
        vector_space=space,
        dimensions=known.dimensions if dimensions is None and known is not None else dimensions,
        size_bytes=report.size_bytes
        if report is not None
        else known.size_bytes
        if known is not None
        else None,
        url=None if space is None or rollout.state == "Refused" else service.url(world.resource, space),
    )
