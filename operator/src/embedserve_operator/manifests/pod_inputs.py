"""Holds what pods are built from: those that serve, and those of Jobs."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.volume import ModelVolume
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.models import ModelSize
from embedserve_operator.state.resource import Resource


@dataclass(frozen=True, slots=True)
class PodInputs:
    """Everything that decides what the pods of one revision of a resource are."""

    resource: Resource
    spec: EmbeddingServiceSpec
    settings: RenderSettings
    revision: str
    config: str
    """The name of the ConfigMap that the pods mount."""
    volume: ModelVolume | None = None
    """The volume of models; None where each pod has its own."""
    model_size: ModelSize | None = None
    """The size of the model that the pods are made for; None as long as it is not known."""
    runtime_class: str | None = None
    """The RuntimeClass of the hardware class; None where the pods get none by it."""
