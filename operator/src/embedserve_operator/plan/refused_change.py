"""Handles a change of the model that is refused, or held while there is no room for both: it returns the
manifest without the change.

Meanwhile everything else in the manifest (pods, resources, the autoscaler, `suspend`)
is done for the model that is served.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.metadata import MODEL_FIELDS
from embedserve_operator.plan.conditions import VECTOR_SPACE_CHANGE, describe_refused_change
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.served_spec import join_declaration
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
    other = {key: value for key, value in spec.as_wire().items() if key not in MODEL_FIELDS}
    found = "its Deployment is gone" if there is None else join_declaration(there, other)
    if isinstance(found, EmbeddingServiceSpec):
        return found
    message = f"{describe_refused_change(refused)}. The other changes of the manifest are not applied either: {found}"
    return Failure(VECTOR_SPACE_CHANGE, message, is_transient=False)
