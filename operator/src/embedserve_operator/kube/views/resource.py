"""This module defines the view of the user's resource before its spec and status are validated."""

from __future__ import annotations

from typing import Any

from pydantic import StrictStr

from embedserve_operator.kube.views.base import Maybe, Part, Presence, Text, View
from embedserve_operator.kube.views.objects import Object


class CacheVolumeOutline(View):
    """Holds what is read of a volume that the resource has made for its models."""

    storage_class_name: Maybe[StrictStr]


class CacheOutline(View):
    """Says on which claim the resource keeps its models."""

    claim_name: Text
    volume: Maybe[CacheVolumeOutline]


class SourceOutline(View):
    """Says whether a model comes in an image."""

    image: Maybe[Presence]


class ModelOutline(View):
    """Holds what is read of the model in an unvalidated spec."""

    source: Part[SourceOutline]


class SpecOutline(View):
    """Holds those fields of a spec that must be known even where the rest of it cannot be read."""

    cache: Part[CacheOutline]
    model: Part[ModelOutline]
    autoscaling: Maybe[Presence]


class PublishedModel(View):
    """Names a model by its digest."""

    digest: Text


class PublishedConversion(View):
    """Names a conversion by its artifact."""

    artifact: Text


class StatusOutline(View):
    """Holds those fields of a status that must be known even where the rest of it cannot be read."""

    fetch: Part[PublishedModel]
    model: Part[PublishedModel]
    conversion: Part[PublishedConversion]


class EmbeddingServiceObject(Object):
    """Holds the user's resource.

    Its spec and status are kept as they were received: `observe` validates them against the resource's own
    types, and says what is wrong with them. Their outlines can be read in any case.
    """

    spec: Any = None
    status: Any = None

    @property
    def spec_outline(self) -> SpecOutline:
        """The fields of the spec that can be read whatever the others hold."""
        return SpecOutline.parse(self.spec)

    @property
    def status_outline(self) -> StatusOutline:
        """The fields of the status that can be read whatever the others hold."""
        return StatusOutline.parse(self.status)
