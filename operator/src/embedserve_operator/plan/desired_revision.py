"""Describes the revision that a spec declares, as far as decisions need it."""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.manifests.deployment import read_template_hash
from embedserve_operator.manifests.metadata import read_fingerprint
from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.preparation import Preparation
from embedserve_operator.plan.revision import compute_revision
from embedserve_operator.plan.revision_manifests import RevisionManifests
from embedserve_operator.plan.rollout import DesiredRevision
from embedserve_operator.plan.scaling import choose_replicas


def describe_revision(
    inputs: PlanInput, preparation: Preparation, manifests: RevisionManifests
) -> DesiredRevision:
    """Return the description of the revision that the spec declares, whose manifests are `manifests`."""
    revision = compute_revision(inputs.spec)
    return DesiredRevision(
        revision=revision,
        fingerprint=read_fingerprint(manifests.deployment) if preparation.is_ready else "",
        template_hash=read_template_hash(manifests.deployment),
        replicas=choose_replicas(inputs.observed, inputs.spec, revision),
        is_sole_user=preparation.must_clear,
    )


def describe_present_deployment(inputs: PlanInput, desired: DesiredRevision) -> DesiredRevision:
    """Return the description of a revision whose Deployment stays as it is, and is all that is asked for."""
    deployment = inputs.observed.find_deployment(desired.revision)
    if deployment is None:
        return desired
    return replace(
        desired,
        fingerprint=deployment.fingerprint if desired.fingerprint else "",
        template_hash=deployment.template_hash,
    )
