"""The size of a model, and when pods are made for it.

It is known once the model has been fetched, often by the very pods whose memory it decides. A template that changed
when the size becomes known would restart every pod that has just started, and after an upgrade of the operator all
pods. So a Deployment keeps the size that its template was made for, and takes up another one with the next change of
its template.
"""

from __future__ import annotations

from collections.abc import Callable

from embedserve_operator.plan.spaces import report_of
from embedserve_operator.specs.deployment import template_hash
from embedserve_operator.wire import Manifest
from embedserve_operator.world import ModelReport, World


def made_for_size(
    world: World, revision: str, report: ModelReport | None, pods_for: Callable[[int | None], Manifest]
) -> Manifest:
    """The Deployment of a revision. `pods_for` makes it for a size; `report` is what a Job has found out."""
    there = world.deployment(revision)
    before = there.model_bytes if there is not None else None
    as_before = pods_for(before)
    if there is not None and template_hash(as_before) == there.template:
        return as_before
    size = report.size_bytes if report is not None else None
    return pods_for(size or size_of(world, revision) or before)


def size_of(world: World, revision: str) -> int | None:
    """Size of the files of a revision's model: as its pods say, else as was published."""
    report = report_of(world, revision)
    if report is not None and report.size_bytes is not None:
        return report.size_bytes
    status = world.resource.status
    space, rollout, model = status.vector_space, status.rollout, status.model
    if space is not None and space.revision == revision and model is not None:
        return model.size_bytes
    if rollout is not None and rollout.revision == revision:
        return rollout.size_bytes
    former = space.previous if space is not None else ()
    return next((one.size_bytes for one in former if one.revision == revision), None)
