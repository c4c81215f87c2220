"""A refused change of the model: the manifest without it.

A Deployment carries the part of the manifest that declares its model. So while a change of it is refused, everything
else of the manifest (pods, resources, the autoscaler, `suspend`) is done for the model that is served.
"""

from __future__ import annotations

import json

from pydantic import ValidationError

from embedserve_operator.api.base import problems_in_words
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.plan.conditions import VECTOR_SPACE_CHANGE, refused_words
from embedserve_operator.plan.revision import revision_of
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.specs.metadata import MODEL_FIELDS
from embedserve_operator.world import Failure, World


def with_model_of(
    world: World, spec: EmbeddingServiceSpec, refused: Rollout
) -> EmbeddingServiceSpec | Failure:
    """The spec with the model that serves; a failure where the two do not go together, or where the Deployment does not
    say what it was made from."""
    there = world.deployment(refused.serving)
    if there is None or not there.declaration:
        return _no(refused, "it is not known what the model that is served was declared as")
    other = {key: value for key, value in spec.as_wire().items() if key not in MODEL_FIELDS}
    try:
        found = EmbeddingServiceSpec.model_validate({**other, **json.loads(there.declaration)})
    except ValidationError as error:
        return _no(refused, f"it does not go with the model that is served: {problems_in_words(error)}")
    if revision_of(found) != refused.serving:
        return _no(refused, "another version of the operator has declared the model that is served")
    return found


def _no(refused: Rollout, why: str) -> Failure:
    words = f"{refused_words(refused)}. What else the manifest asks for is not done either: {why}"
    return Failure(VECTOR_SPACE_CHANGE, words, heals=False)
