"""Defines what a plan is made from."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.models import FetchedModel, ModelSize
from embedserve_operator.state.observed import ObservedState


@dataclass(frozen=True, slots=True)
class PlanInput:
    """The facts that a plan is made from; none of them changes while the plan is made."""

    observed: ObservedState
    spec: EmbeddingServiceSpec
    """The spec to carry out: that of the resource, or the same with the model that is served, where a change of the
    model is blocked.
    """
    settings: RenderSettings
    fetched: FetchedModel | None = None
    """The report of Jobs about the model that the spec declares, before its pods report anything."""
    planned_size: ModelSize | None = None
    """The size of that model as a Job has read it, where none has fetched it."""
