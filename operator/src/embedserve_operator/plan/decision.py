"""Defines what was decided about a spec, for those who build the children and the status from it."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.plan.plan_input import PlanInput
from embedserve_operator.plan.preparation import Preparation
from embedserve_operator.plan.revision_manifests import RevisionManifests
from embedserve_operator.plan.rollout import DesiredRevision, Rollout
from embedserve_operator.plan.upgrade_cases import UpgradeStep, is_deferred


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a spec that can be carried out."""

    inputs: PlanInput
    preparation: Preparation
    desired: DesiredRevision
    manifests: RevisionManifests
    """The manifests of the desired revision."""
    rollout: Rollout
    upgrade: UpgradeStep = "Unaffected"
    """The step that an upgrade of the operator takes with the Deployment that serves."""
    serving: RevisionManifests | None = None
    """The manifests of the revision that serves while the desired one is not complete; None where there is no such
    revision, or where it stays as it is.
    """
    retained: tuple[RevisionManifests, ...] = ()
    """The manifests of the retained revisions, without those that stay as they are."""
    blocked_change: Rollout | None = None
    """The change of the model that the manifest asks for and that is blocked: the spec is without it."""

    @property
    def keeps_deployment(self) -> bool:
        """Return whether the Deployment of the desired revision stays as it is, since an upgrade of the operator has
        not come to it yet.
        """
        return is_deferred(self.upgrade) and not self.rollout.is_waiting
