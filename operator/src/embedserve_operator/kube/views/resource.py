"""Defines the view of the user's resource before its spec and status are validated."""

from __future__ import annotations

from typing import Any

from pydantic import StrictStr

from embedserve_operator.kube.views.base import Maybe, Part, Presence, Text, View
from embedserve_operator.kube.views.objects import Object


class PartialCacheVolume(View):
    """The fields that are read of a volume that the resource has made for its models."""

    storage_class_name: Maybe[StrictStr]


class PartialCache(View):
    """The claim on which the resource keeps its models."""

    claim_name: Text
    volume: Maybe[PartialCacheVolume]


class PartialModelSource(View):
    """The image that a model comes in, if it does."""

    image: Maybe[Presence]


class PartialModel(View):
    """The fields that are read of the model in an unvalidated spec."""

    source: Part[PartialModelSource]


class PartialSpec(View):
    """The fields of a spec that must be known even where the rest of it cannot be read."""

    cache: Part[PartialCache]
    model: Part[PartialModel]
    autoscaling: Maybe[Presence]


class PublishedModel(View):
    """The digest of a model."""

    digest: Text


class PublishedConversion(View):
    """The artifact of a conversion."""

    artifact: Text


class PartialStatus(View):
    """The fields of a status that must be known even where the rest of it cannot be read."""

    fetch: Part[PublishedModel]
    model: Part[PublishedModel]
    conversion: Part[PublishedConversion]


class EmbeddingServiceObject(Object):
    """The user's resource.

    Its spec and status are kept as they were received: `observe` validates them against the resource's own
    types, and says what is wrong with them. Some fields can be read in any case.
    """

    spec: Any = None
    status: Any = None

    @property
    def partial_spec(self) -> PartialSpec:
        """The fields of the spec that can be read whatever the others hold."""
        return PartialSpec.parse(self.spec)

    @property
    def partial_status(self) -> PartialStatus:
        """The fields of the status that can be read whatever the others hold."""
        return PartialStatus.parse(self.status)
