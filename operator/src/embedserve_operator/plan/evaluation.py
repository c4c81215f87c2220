"""Holds how far a spec has been carried out, for those who build the plan from it."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan.revision_build import EarlierBuild, RevisionBuild
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.upgrade_cases import UpgradeStep
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.observed import ObservedState


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Says how far a spec has been carried out."""

    observed: ObservedState
    """The observed state, with what a Job has found out about the model."""
    spec: EmbeddingServiceSpec
    settings: RenderSettings
    build: RevisionBuild
    """The revision that the spec declares."""
    rollout: Rollout
    serving: EarlierBuild | None = None
    """The revision that serves meanwhile, where another one does and can follow the manifest."""
    retained: tuple[EarlierBuild, ...] = ()
    """The retained revisions that can follow the manifest."""
    refused: Rollout | None = None
    """The change of the model that the manifest asks for beyond the spec and does not get."""
    upgrade: UpgradeStep = "Unaffected"
    """What an upgrade of the operator does with the Deployment that serves."""
