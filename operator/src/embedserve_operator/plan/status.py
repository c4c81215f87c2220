"""What the status says about what is served: numbers, address, model, vector space."""

from __future__ import annotations

from embedserve_operator.api.status import Endpoint, HardwareStatus, ServedModel, VectorSpace
from embedserve_operator.plan.outcome import PlannedCondition, PlannedStatus
from embedserve_operator.specs import service
from embedserve_operator.specs.metadata import selector
from embedserve_operator.world import ModelReport, Resource, World


def served(
    world: World,
    serving: str,
    source: str | None,
    hardware: HardwareStatus,
    conditions: tuple[PlannedCondition, ...],
    *,
    fetched: ModelReport | None,
) -> PlannedStatus:
    """The status while `serving` is the revision that the Service selects.

    `source` is where the wanted model comes from, and `fetched` what a Job found out about it; None when another
    revision is served.
    """
    deployment = world.deployment(serving)
    selection = ",".join(f"{key}={value}" for key, value in selector(world.resource, serving).items())
    report = _report(world, serving) or fetched
    model = _model(report, world.resource, selection, source)
    spec = world.resource.spec
    grpc = service.grpc_address(world.resource, spec.service) if spec is not None else None
    return PlannedStatus(
        conditions=conditions,
        replicas=deployment.replicas if deployment is not None else 0,
        ready_replicas=deployment.ready if deployment is not None else 0,
        selector=selection,
        endpoint=Endpoint(url=service.url(world.resource), grpc=grpc),
        vector_space=_vector_space(report, world.resource, selection),
        model=model,
        hardware=hardware,
    )


def unchanged(resource: Resource, conditions: tuple[PlannedCondition, ...]) -> PlannedStatus:
    """The published status with other conditions."""
    status = resource.status
    return PlannedStatus(
        conditions=conditions,
        replicas=status.replicas or 0,
        ready_replicas=status.ready_replicas or 0,
        selector=status.selector,
        endpoint=status.endpoint,
        vector_space=status.vector_space,
        model=status.model,
        fetch=status.fetch,
        conversion=status.conversion,
        hardware=status.hardware,
    )


def _report(world: World, revision: str) -> ModelReport | None:
    """What the pods say about their model; those that serve are asked first."""
    pods = sorted(world.pods_of(revision), key=lambda pod: (pod.phase != "Ready", pod.name))
    return next((pod.report for pod in pods if pod.report is not None), None)


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
        )
    # Between the end of one pod and the report of the next nothing new is known about the same revision.
    if known is not None:
        return known
    return ServedModel(source=name) if name is not None else None


def _vector_space(report: ModelReport | None, resource: Resource, selection: str) -> VectorSpace | None:
    if report is None:
        return resource.status.vector_space if resource.status.selector == selection else None
    if report.vector_space is None or report.dimensions is None:
        return None
    return VectorSpace(id=report.vector_space, dimensions=report.dimensions)
