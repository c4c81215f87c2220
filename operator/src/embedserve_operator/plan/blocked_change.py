"""Returns the manifest without a change of the model that is blocked: refused by `onNewVectorSpace: Refuse`, or held by
`hold` where the new pods cannot run beside the old ones.

Meanwhile everything else in the manifest (pods, resources, the autoscaler, `suspend`) is done for the model that is
served.
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
    observed: ObservedState, spec: EmbeddingServiceSpec, blocked_change: Rollout
) -> EmbeddingServiceSpec | Failure:
    """Return the spec with the model that is served.

    A failure is returned where the two do not fit, or where the Deployment does not say what it was made
    from.
    """
    deployment = observed.find_deployment(blocked_change.serving)
    settings = {key: value for key, value in spec.as_wire().items() if key not in MODEL_FIELDS}
    joined = "its Deployment is gone" if deployment is None else join_declaration(deployment, settings)
    if isinstance(joined, EmbeddingServiceSpec):
        return joined
    blocked = describe_blocked_change(blocked_change)
    message = f"{blocked}. The other changes of the manifest are not applied either: {joined}"
    return Failure(VECTOR_SPACE_CHANGE, message, is_transient=False)


def describe_blocked_change(blocked_change: Rollout) -> str:
    """Describe why a change of the model is blocked, and what the user can do."""
    if blocked_change.state == "Held":
        return (
            "the manifest asks for another model, which cannot run beside this one (spec.rollout.onNewVectorSpace is "
            "InPlace, or only one pod can mount the model volume) and does not start until spec.rollout.hold is false"
        )
    new_space = blocked_change.desired_space or "one that is unknown until one of its pods runs"
    return (
        f"{blocked_change.space} is the vector space of this service, the changed manifest leads to {new_space}, and "
        "spec.rollout.onNewVectorSpace is Refuse: the model is unchanged. Allow the change with BlueGreen, or revert it"
    )
