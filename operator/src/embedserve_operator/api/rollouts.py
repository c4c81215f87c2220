"""`spec.rollout`: what happens when a change of the manifest means another vector space."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from embedserve_operator.api.base import Model
from embedserve_operator.api.rules import matches
from embedserve_operator.api.times import DURATION


class RolloutSettings(Model):
    """Change of the service from one vector space to another."""

    on_new_vector_space: Literal["BlueGreen", "Refuse", "InPlace"] = "BlueGreen"
    """BlueGreen brings the new model up beside the old one, and switches when all of it is ready. Refuse changes
    nothing and says so. InPlace stops the old model first, for clusters that have no room for both: nothing is
    answered until the new one is ready."""
    on_precision_change: Literal["Rolling", "BlueGreen"] = "Rolling"
    """Policy for a change of `model.precision`, `onnx`, `engine` or `hardware.class` that keeps the vector space.
    Rolling replaces the pods one after another: meanwhile clients get vectors of both, as near to each other as
    status.conversion says. BlueGreen brings the new pods up beside the old ones, and switches when all are ready."""
    keep_previous: Annotated[
        str,
        Field(max_length=20),
        matches(DURATION, "must be a duration such as 24h, 90m or 0s, which keeps none"),
    ] = "24h"
    """Time for which the pods of the old vector space stay after a switch, reachable by its own name and ready for a
    way back at once."""
    hold: bool = False
    """Keeps the old vector space at the service's name although the new one is ready at its own name, to fill a
    new index first. Set it to false to switch. With InPlace, and on a volume that only one pod can mount, the
    new model does not start before that."""
