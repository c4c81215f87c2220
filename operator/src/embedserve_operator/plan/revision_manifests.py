"""Renders the ConfigMap and the Deployment of a revision: of the one that the spec declares, and of earlier ones that
serve meanwhile or are retained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.configmap import build_config_map
from embedserve_operator.manifests.deployment import annotate_upgrade, build_deployment
from embedserve_operator.manifests.pod_inputs import PodInputs
from embedserve_operator.plan.model_volume import choose_model_volume
from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.revision import compute_revision
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.scaling import plan_frozen_replicas
from embedserve_operator.plan.served_spec import ServedSpec, build_served_spec
from embedserve_operator.plan.template_inputs import TemplateInputs, build_deployment_for_inputs
from embedserve_operator.plan.vector_spaces import find_vector_space
from embedserve_operator.state.workloads import DeploymentState


@dataclass(frozen=True, slots=True)
class RevisionManifests:
    """The manifests that a revision has for itself."""

    spec: EmbeddingServiceSpec
    """The spec that they were rendered from."""
    config_map: Manifest
    deployment: Manifest


def render_revision(inputs: PlanInput) -> RevisionManifests:
    """Return the manifests of the revision that the spec declares."""
    observed, spec = inputs.observed, inputs.spec
    revision = compute_revision(spec)
    report = inputs.fetched.report if inputs.fetched is not None else None
    config_map, pods = _render_config_map(inputs, spec, revision)
    deployment = observed.find_deployment(revision)

    def build_for(template: TemplateInputs) -> Manifest:
        return build_deployment(
            replace(pods, model_size=template.model_size, runtime_class=template.runtime_class),
            space=find_vector_space(inputs, revision),
            report=report,
            # An annotation that is merely left out would not be a reason to write the Deployment.
            followed="" if deployment is not None and deployment.followed is not None else None,
        )

    return RevisionManifests(spec, config_map, build_deployment_for_inputs(inputs, pods, report, build_for))


def render_serving(inputs: PlanInput, rollout: Rollout) -> RevisionManifests | None:
    """Return the manifests of the revision that serves while another one is desired, as the later edits of the spec
    make them; None where it stays as it is, or makes room.
    """
    deployment = inputs.observed.find_deployment(rollout.serving)
    if not rollout.is_waiting or rollout.is_serving_broken or deployment is None:
        return None
    served = build_served_spec(deployment, inputs.spec, rollout.desired)
    return None if served is None else _render_earlier(inputs, deployment, served, rollout.space)


def render_retained(inputs: PlanInput, rollout: Rollout) -> tuple[RevisionManifests, ...]:
    """Return the manifests of the retained revisions as the later edits of the spec make them, without those that stay
    as they are.

    Their pods answer by the name of their vector space, and take the service's name on the way back: with the present
    keys, images and resources. They keep their number.
    """
    rendered = []
    for retained in rollout.retained:
        deployment = inputs.observed.find_deployment(retained.previous.revision)
        served = None if deployment is None else build_served_spec(deployment, inputs.spec, rollout.desired)
        if deployment is None or served is None:
            continue
        served = replace(served, spec=_keep_replicas(inputs, deployment, served.spec))
        rendered.append(_render_earlier(inputs, deployment, served, retained.previous.space))
    return tuple(rendered)


def _keep_replicas(
    inputs: PlanInput, deployment: DeploymentState, spec: EmbeddingServiceSpec
) -> EmbeddingServiceSpec:
    """Return the spec of a retained revision with the number of pods that its Deployment has, or should have again as
    the spec of the service says. A number that an autoscaler has written is never sent.
    """
    if deployment.is_autoscaled and spec.autoscaling is not None:
        return spec
    transfer = plan_frozen_replicas(inputs.observed, inputs.spec, deployment.revision)
    replicas = deployment.desired_replicas if transfer is None else transfer.replicas
    return spec.model_copy(update={"autoscaling": None, "replicas": replicas})


def _render_earlier(
    inputs: PlanInput, deployment: DeploymentState, served: ServedSpec, space: str | None
) -> RevisionManifests:
    """Return the manifests of an existing Deployment for another spec; `space` is its vector space."""
    config_map, pods = _render_config_map(inputs, served.spec, deployment.revision)

    def build_for(template: TemplateInputs) -> Manifest:
        return build_deployment(
            replace(pods, model_size=template.model_size, runtime_class=template.runtime_class),
            space=space,
            report=deployment.report,
            followed=served.followed,
        )

    manifest = build_deployment_for_inputs(inputs, pods, deployment.report, build_for)
    if deployment.upgrade:
        # What serves says again how far an upgrade has come with it.
        manifest = annotate_upgrade(manifest, "")
    return RevisionManifests(served.spec, config_map, manifest)


def _render_config_map(
    inputs: PlanInput, spec: EmbeddingServiceSpec, revision: str
) -> tuple[Manifest, PodInputs]:
    """Return the configuration of a revision, and what its pods are built from."""
    observed = inputs.observed
    config_map = build_config_map(observed.resource, spec, inputs.settings)
    pods = PodInputs(
        resource=observed.resource,
        spec=spec,
        settings=inputs.settings,
        revision=revision,
        config=config_map["metadata"]["name"],
        volume=choose_model_volume(observed, spec),
    )
    return config_map, pods
