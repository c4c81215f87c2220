"""Builds the revision that a spec declares: its configuration, its Deployment, and how far its
model has been prepared; and earlier revisions that serve meanwhile or are retained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.configmap import build_config_map
from embedserve_operator.manifests.deployment import build_deployment, mark_upgrade, read_template_hash
from embedserve_operator.manifests.metadata import read_fingerprint
from embedserve_operator.manifests.placement import find_runtime_class
from embedserve_operator.manifests.pod_inputs import PodInputs
from embedserve_operator.manifests.volume import ModelVolume
from embedserve_operator.plan.model_volume import choose_model_volume
from embedserve_operator.plan.preparation import Preparation, plan_preparation
from embedserve_operator.plan.revision import compute_revision
from embedserve_operator.plan.rollout import DesiredRevision, Rollout
from embedserve_operator.plan.scaling import choose_replicas, plan_frozen_replicas
from embedserve_operator.plan.served_spec import ServedSpec, build_served_spec
from embedserve_operator.plan.template_inputs import TemplateInputs, build_deployment_for_inputs
from embedserve_operator.plan.vector_spaces import find_vector_space
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.models import FetchedModel
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.workloads import DeploymentState


@dataclass(frozen=True, slots=True)
class RevisionBuild:
    """Holds a revision as its spec asks for it."""

    config_map: Manifest
    deployment: Manifest
    desired: DesiredRevision
    volume: ModelVolume | None
    preparation: Preparation
    is_held_back: bool = False
    """Whether the Deployment that exists stays as it is: an upgrade of the operator has not come to it yet."""

    @property
    def fetched(self) -> FetchedModel | None:
        """What a Job has found out about the model, if anything."""
        report = self.preparation.report
        return None if report is None else FetchedModel(self.desired.revision, report)


def build_revision(
    observed: ObservedState, spec: EmbeddingServiceSpec, settings: RenderSettings
) -> RevisionBuild:
    """Return what the revision that a spec declares consists of."""
    volume = choose_model_volume(observed, spec)
    preparation = plan_preparation(observed, spec, settings, volume)
    report = preparation.report
    revision = compute_revision(spec)
    config = build_config_map(observed.resource, spec, settings)

    space = find_vector_space(observed, revision) or (report.vector_space if report is not None else None)
    pods = PodInputs(
        resource=observed.resource,
        spec=spec,
        settings=settings,
        revision=revision,
        config=config["metadata"]["name"],
        volume=volume,
    )

    there = observed.find_deployment(revision)

    def build_for(inputs: TemplateInputs) -> Manifest:
        placed = replace(pods, runtime_class=inputs.runtime_class)
        return build_deployment(
            placed,
            space=space,
            report=report,
            model_bytes=inputs.model_bytes,
            # An annotation that is merely left out would not be a reason to write the Deployment.
            followed="" if there is not None and there.followed is not None else None,
        )

    present = find_runtime_class(spec, settings, observed.cluster)
    deployment = build_deployment_for_inputs(observed, revision, report, present, build_for)
    # What is not prepared cannot be complete.
    fingerprint = read_fingerprint(deployment) if preparation.is_ready else ""
    replicas = choose_replicas(observed, spec, revision)
    desired = DesiredRevision(
        revision, fingerprint, read_template_hash(deployment), replicas, is_sole_user=preparation.must_clear
    )
    return RevisionBuild(config, deployment, desired, volume, preparation)


@dataclass(frozen=True, slots=True)
class EarlierBuild:
    """Holds a revision that has pods while the manifest asks for another model."""

    spec: EmbeddingServiceSpec
    """The manifest of that revision."""
    config_map: Manifest
    deployment: Manifest


def build_serving(
    observed: ObservedState, spec: EmbeddingServiceSpec, settings: RenderSettings, rollout: Rollout
) -> EarlierBuild | None:
    """Return the revision that serves meanwhile as the later edits of the manifest make it; None where it stays as it
    is, or makes room.
    """
    there = observed.find_deployment(rollout.serving)
    if not rollout.is_waiting or rollout.is_serving_broken or there is None:
        return None
    served = build_served_spec(there, spec, rollout.desired)
    return None if served is None else _build_earlier(observed, settings, there, served, rollout.space)


def build_retained(
    observed: ObservedState, spec: EmbeddingServiceSpec, settings: RenderSettings, rollout: Rollout
) -> tuple[EarlierBuild, ...]:
    """Return the retained revisions as the later edits of the manifest make them, without those that stay as they are.

    Their pods answer by the name of their vector space, and take the service's name on the way back: with the present
    keys, images and resources. They keep their number.
    """
    found = []
    for one in rollout.retained:
        there = observed.find_deployment(one.previous.revision)
        served = None if there is None else build_served_spec(there, spec, rollout.desired)
        if there is None or served is None:
            continue
        kept = replace(served, spec=_keep_replicas(observed, spec, there, served.spec))
        found.append(_build_earlier(observed, settings, there, kept, one.previous.space))
    return tuple(found)


def _keep_replicas(
    observed: ObservedState, spec: EmbeddingServiceSpec, there: DeploymentState, kept: EmbeddingServiceSpec
) -> EmbeddingServiceSpec:
    """Return the manifest of a retained revision with the number of pods that its Deployment has, or should have again
    where the manifest of the service is `spec`. A number that an autoscaler has written is never sent.
    """
    if there.is_autoscaled and kept.autoscaling is not None:
        return kept
    claim = plan_frozen_replicas(observed, spec, there.revision)
    number = there.desired_replicas if claim is None else claim.replicas
    return kept.model_copy(update={"autoscaling": None, "replicas": number})


def _build_earlier(
    observed: ObservedState,
    settings: RenderSettings,
    there: DeploymentState,
    served: ServedSpec,
    space: str | None,
) -> EarlierBuild:
    """Return the revision of an existing Deployment for another manifest, whose vector space is `space`."""
    config = build_config_map(observed.resource, served.spec, settings)
    pods = PodInputs(
        resource=observed.resource,
        spec=served.spec,
        settings=settings,
        revision=there.revision,
        config=config["metadata"]["name"],
        volume=choose_model_volume(observed, served.spec),
    )

    def build_for(inputs: TemplateInputs) -> Manifest:
        return build_deployment(
            replace(pods, runtime_class=inputs.runtime_class),
            space=space,
            report=there.report,
            model_bytes=inputs.model_bytes,
            followed=served.followed,
        )

    present = find_runtime_class(served.spec, settings, observed.cluster)
    deployment = build_deployment_for_inputs(observed, there.revision, there.report, present, build_for)
    if there.upgrade:
        # What serves says again how far an upgrade has come with it.
        deployment = mark_upgrade(deployment, "")
    return EarlierBuild(served.spec, config, deployment)
