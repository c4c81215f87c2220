"""Decides which of the things that become known by and by a pod template is made for: the size of the
model, and a RuntimeClass that the cluster has.

The size is known once the model has been fetched, often by the very pods whose memory it decides. A RuntimeClass
comes and goes with what others install. A template that changed at that moment would restart every pod of the
service. So a Deployment keeps what its template was made for, and takes the present values into account with the
next change of its template.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.deployment import read_template_hash
from embedserve_operator.manifests.placement import find_runtime_class
from embedserve_operator.manifests.pod_inputs import PodInputs
from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.vector_spaces import find_model_report
from embedserve_operator.state.models import ModelReport, ModelSize
from embedserve_operator.state.workloads import DeploymentState


class TemplateInputs(NamedTuple):
    """The facts that decide a pod template besides the spec and the settings."""

    model_size: ModelSize | None
    """Size of the model; None as long as it is not known."""
    runtime_class: str | None
    """RuntimeClass of the hardware class; None where the cluster has none of its name."""


def build_deployment_for_inputs(
    inputs: PlanInput,
    pods: PodInputs,
    report: ModelReport | None,
    build_for: Callable[[TemplateInputs], Manifest],
) -> Manifest:
    """Return the Deployment of the revision that `pods` belong to.

    `build_for` builds it for some inputs; `report` is what a Job has found out about its model.
    """
    deployment = inputs.observed.find_deployment(pods.revision)
    present_class = find_runtime_class(pods.spec, inputs.settings, inputs.observed.cluster)
    before = None
    if deployment is not None:
        before = TemplateInputs(deployment.model_size, _choose_runtime_class(deployment, present_class))
        manifest = build_for(before)
        if read_template_hash(manifest) == deployment.template_hash:
            return manifest
    size = (report.size if report is not None else None) or find_model_size(inputs, pods.revision)
    if size is None and deployment is None:
        size = inputs.planned_size
    if size is None or size.memory is None:
        # What is published has the size of the files alone.
        size = (before.model_size if before is not None else None) or size
    return build_for(TemplateInputs(size, present_class))


def _choose_runtime_class(deployment: DeploymentState, present: str | None) -> str | None:
    """Return the RuntimeClass that a Deployment keeps, or the present one where none of its pods is ready: pods that
    found no accelerator may find it with that.
    """
    is_of_use = deployment.ready > 0 or deployment.desired_replicas == 0
    return deployment.runtime_class if is_of_use else present


def find_model_size(inputs: PlanInput, revision: str) -> ModelSize | None:
    """Return the size of a revision's model: what its pods report, or else what was published."""
    report = find_model_report(inputs, revision)
    return (report.size if report is not None else None) or _read_published_size(inputs, revision)


def _read_published_size(inputs: PlanInput, revision: str) -> ModelSize | None:
    status = inputs.observed.resource.status
    space, rollout, model = status.vector_space, status.rollout, status.model
    if space is not None and space.revision == revision and model is not None:
        file_bytes = model.size_bytes
    elif rollout is not None and rollout.revision == revision:
        file_bytes = rollout.size_bytes
    else:
        earlier = space.previous if space is not None else ()
        file_bytes = next(
            (previous.size_bytes for previous in earlier if previous.revision == revision), None
        )
    return None if file_bytes is None else ModelSize(file_bytes)
