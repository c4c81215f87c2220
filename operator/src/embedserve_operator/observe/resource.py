"""This module reads the user's resource."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from embedserve_operator.api.base import describe_problems
from embedserve_operator.api.status import EmbeddingServiceStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Received, dig, number, text
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.manifests.metadata import (
    own_claim_name,
)
from embedserve_operator.state.resource import Resource


def read_claim_name(resource: Received) -> str | None:
    """Return the name of the claim that a resource keeps its models on; None when it has no claim."""
    name = text(resource, "metadata", "name")
    if dig(resource, "spec", "cache", "volume") is not None:
        return own_claim_name(name)
    return text(resource, "spec", "cache", "claimName") or None


def read_resource(resource: Received) -> Resource:
    """Return the user's resource. Faults in its spec are kept as a message."""
    spec, problem = _parse_spec(dig(resource, "spec"))
    return Resource(
        key=read_key(resource),
        uid=text(resource, "metadata", "uid"),
        generation=number(resource, "metadata", "generation"),
        spec=spec,
        problem=problem,
        status=_parse_status(dig(resource, "status")),
    )


def read_key(resource: Received) -> ObjectKey:
    """Return the namespace and name of an object."""
    return ObjectKey(text(resource, "metadata", "namespace"), text(resource, "metadata", "name"))


def _parse_spec(received: Any) -> tuple[EmbeddingServiceSpec | None, str]:
    try:
        return EmbeddingServiceSpec.model_validate(received), ""
    except ValidationError as error:
        return None, describe_problems(error)


def _parse_status(received: Any) -> EmbeddingServiceStatus:
    """Return the published status.

    One that cannot be read, since another version wrote it, counts as empty and is replaced.
    """
    try:
        return EmbeddingServiceStatus.model_validate(received or {})
    except ValidationError:
        return EmbeddingServiceStatus()
