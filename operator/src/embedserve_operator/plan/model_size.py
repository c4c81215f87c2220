"""This module finds the size of a model, and decides when a pod template takes it into account.

The size is known once the model has been fetched, often by the very pods whose memory it decides. A
template that changed at that moment would restart every pod that has just started, and after an upgrade of
the operator all pods. So a Deployment keeps the size that its template was made for, and takes the known
size into account with the next change of its template.
"""

from __future__ import annotations

from collections.abc import Callable

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.deployment import read_template_hash
from embedserve_operator.plan.vector_spaces import find_model_report
from embedserve_operator.state.models import ModelReport
from embedserve_operator.state.observed import ObservedState


def build_deployment_for_size(
    observed: ObservedState,
    revision: str,
    report: ModelReport | None,
    pods_for: Callable[[int | None], Manifest],
) -> Manifest:
    """Return the Deployment of a revision.

    `pods_for` builds it for a size; `report` is what a Job has found out.
    """
    there = observed.find_deployment(revision)
    before = there.model_bytes if there is not None else None
    as_before = pods_for(before)
    if there is not None and read_template_hash(as_before) == there.template_hash:
        return as_before
    size = report.size_bytes if report is not None else None
    return pods_for(size or find_model_size(observed, revision) or before)


def find_model_size(observed: ObservedState, revision: str) -> int | None:
    """Return the size of the files of a revision's model: what its pods report, or else what was published."""
    report = find_model_report(observed, revision)
    if report is not None and report.size_bytes is not None:
        return report.size_bytes
    status = observed.resource.status
    space, rollout, model = status.vector_space, status.rollout, status.model
    if space is not None and space.revision == revision and model is not None:
        return model.size_bytes
    if rollout is not None and rollout.revision == revision:
        return rollout.size_bytes
    previous = space.previous if space is not None else ()
    return next((one.size_bytes for one in previous if one.revision == revision), None)
