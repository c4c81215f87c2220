"""Handles a change of the model that is refused, or held while there is no room for both: it returns the
manifest without the change.

Meanwhile everything else in the manifest (pods, resources, the autoscaler, `suspend`)
is done for the model that is served.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.metadata import MODEL_FIELDS
from embedserve_operator.plan.rollout import Rollout
from embedserve_operator.plan.served_spec import join_declaration
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.observed import ObservedState

VECTOR_SPACE_CHANGE = "VectorSpaceChange"


def keep_served_model(
    observed: ObservedState, spec: EmbeddingServiceSpec, refused: Rollout
) -> EmbeddingServiceSpec | Failure:
    """Return the spec with the model that is served.

    A failure is returned where the two do not fit, or where the Deployment does not say what it was made
    from.
    """
    deployment = observed.find_deployment(refused.serving)
    settings = {key: value for key, value in spec.as_wire().items() if key not in MODEL_FIELDS}
    joined = "its Deployment is gone" if deployment is None else join_declaration(deployment, settings)
    if isinstance(joined, EmbeddingServiceSpec):
        return joined
    message = f"{describe_refused_change(refused)}. The other changes of the manifest are not applied either: {joined}"
    return Failure(VECTOR_SPACE_CHANGE, message, is_transient=False)


def describe_refused_change(refused: Rollout) -> str:
    """Describe why a change of the model is refused or not begun, and what the user can do."""
    if refused.state == "Held":
        return (
            "the manifest asks for another model, which cannot run beside this one (spec.rollout.onNewVectorSpace is "
            "InPlace, or only one pod can mount the model volume) and does not start until spec.rollout.hold is false"
        )
    means = refused.desired_space or "one that is unknown until one of its pods runs"
    return (
        f"{refused.space} is the vector space of this service, the changed manifest leads to {means}, and "
        "spec.rollout.onNewVectorSpace is Refuse: the model is unchanged. Allow the change with BlueGreen, or revert it"
    )
