"""This module handles a refused change of the model: it returns the manifest without the change.

A Deployment carries the part of the manifest that declares its model. So while a change of the model is
refused, everything else in the manifest (pods, resources, the autoscaler, `suspend`) is done for the model
that is served.
"""

from __future__ import annotations

import json

from pydantic import ValidationError

from embedserve_operator.api.base import describe_problems
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.metadata import MODEL_FIELDS
from embedserve_operator.plan.conditions import VECTOR_SPACE_CHANGE, describe_refused_change
from embedserve_operator.plan.revision import compute_revision
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.observed import ObservedState


def keep_served_model(
    observed: ObservedState, spec: EmbeddingServiceSpec, refused: Rollout
) -> EmbeddingServiceSpec | Failure:
    """Return the spec with the model that is served.

    A failure is returned where the two do not fit, or where the Deployment does not say what it was made
    from.
    """
    there = observed.find_deployment(refused.serving)
    if there is None or not there.declaration:
        return _build_failure(refused, "it is not known what the model that is served was declared as")
    other = {key: value for key, value in spec.as_wire().items() if key not in MODEL_FIELDS}
    try:
        found = EmbeddingServiceSpec.model_validate({**other, **json.loads(there.declaration)})
    except ValidationError as error:
        return _build_failure(
            refused, f"it does not go with the model that is served: {describe_problems(error)}"
        )
    if compute_revision(found) != refused.serving:
        return _build_failure(
            refused, "another version of the operator has declared the model that is served"
        )
    return found


def _build_failure(refused: Rollout, why: str) -> Failure:
    message = f"{describe_refused_change(refused)}. What else the manifest asks for is not done either: {why}"
    return Failure(VECTOR_SPACE_CHANGE, message, is_transient=False)
