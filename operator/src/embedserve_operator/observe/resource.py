"""Reads the user's resource."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from embedserve_operator.api.base import describe_problems
from embedserve_operator.api.reading import read_known_fields
from embedserve_operator.api.status import EmbeddingServiceStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.manifests.metadata import build_claim_name
from embedserve_operator.state.resource import Resource


def read_claim_name(resource: EmbeddingServiceObject) -> str | None:
    """Return the name of the claim that a resource keeps its models on; None when it has no claim."""
    cache = resource.partial_spec.cache
    if cache.volume is not None:
        return build_claim_name(resource.metadata.name)
    return cache.claim_name or None


def read_resource(resource: EmbeddingServiceObject) -> Resource:
    """Return the user's resource. Faults in its spec are kept as a message."""
    spec, problem = _parse_spec(resource.spec)
    return Resource(
        key=resource.metadata.key,
        uid=resource.metadata.uid,
        generation=resource.metadata.generation,
        spec=spec,
        problem=problem,
        # Another version of the operator may have written it.
        status=read_known_fields(EmbeddingServiceStatus, resource.status),
    )


def _parse_spec(received: Any) -> tuple[EmbeddingServiceSpec | None, str]:
    try:
        return EmbeddingServiceSpec.model_validate(received), ""
    except ValidationError as error:
        return None, describe_problems(error)
