"""Returns the manifest of a revision that serves while the manifest asks for another model.

A Deployment carries the part of the manifest that declares its model, and the part that says how its pods run. What
the user writes in the same edit as the new model belongs to the new model: its memory, its class of nodes. Every later
edit is made to both, so that what serves can be scaled, gets new keys and is never out of the user's reach.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from embedserve_operator.api.base import describe_problems
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import format_canonical_json
from embedserve_operator.kube.views.base import Text, View
from embedserve_operator.manifests.deployment import find_fixed_replicas, format_settings
from embedserve_operator.manifests.metadata import IMMEDIATE_FIELDS
from embedserve_operator.plan.revision import compute_revision
from embedserve_operator.state.workloads import DeploymentState

_WHOLE_FIELDS = frozenset({"resources", "autoscaling"})
"""Fields whose parts only make sense together."""


@dataclass(frozen=True, slots=True)
class ServedSpec:
    """The manifest of a revision that serves meanwhile."""

    spec: EmbeddingServiceSpec
    followed: str
    """The edits of the manifest that the revision has followed, as JSON, to be kept with its Deployment."""


class _Followed(View):
    """The extent to which a Deployment has followed a manifest that asks for another model."""

    revision: Text
    settings: dict[str, Any] = Field(default_factory=dict)


def build_served_spec(
    deployment: DeploymentState, spec: EmbeddingServiceSpec, desired: str
) -> ServedSpec | None:
    """Return the manifest of a revision that serves while `spec` asks for the revision `desired`.

    None is returned where the Deployment does not say what it was made from, or where that and the later edits do not
    fit together; it stays as it is then.
    """
    if not deployment.settings:
        return None
    now = json.loads(format_settings(spec))
    followed = _Followed.parse_json(deployment.followed or "")
    # Another model than before came with this edit.
    before = followed.settings if followed.revision == desired else now
    wire = spec.as_wire()
    settings = {
        **_follow(_parse_object(deployment.settings), before, now),
        **{field: wire[field] for field in IMMEDIATE_FIELDS if field in wire},
    }
    if "autoscaling" in settings:
        settings["replicas"] = 1
    elif settings.get("replicas") == 0 and find_fixed_replicas(spec) != 0:
        # It was stopped, and pods should run again: until the new model is complete nothing else can serve.
        settings["replicas"] = max(1, spec.replicas)
    joined = join_declaration(deployment, settings)
    if isinstance(joined, str):
        return None
    return ServedSpec(joined, format_canonical_json({"revision": desired, "settings": now}))


def join_declaration(deployment: DeploymentState, settings: dict[str, Any]) -> EmbeddingServiceSpec | str:
    """Return the manifest that declares the model of a Deployment and has these other fields; a reason where that
    cannot be.
    """
    if not deployment.declaration:
        return "it is not known how the model that is served was declared"
    try:
        spec = EmbeddingServiceSpec.model_validate({**settings, **_parse_object(deployment.declaration)})
    except ValidationError as error:
        return f"it does not fit the model that is served: {describe_problems(error)}"
    if compute_revision(spec) != deployment.revision:
        return (
            "another version of the operator has declared the model that is served, or its precision or engine changes "
            "too and spec.rollout.onPrecisionChange is BlueGreen"
        )
    return spec


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _follow(own: dict[str, Any], before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return `own` with what has changed from `before` to `now`."""
    keys = sorted(own.keys() | before.keys() | now.keys())
    values = {key: _follow_value(key, own.get(key), before.get(key), now.get(key)) for key in keys}
    return {key: value for key, value in values.items() if value is not None}


def _follow_value(key: str, own: Any, before: Any, now: Any) -> Any:
    """Return the value of a field after a change from `before` to `now`; None where the field goes.

    Fields inside of a field are followed one by one, unless they only make sense together.
    """
    if key not in _WHOLE_FIELDS and all(isinstance(value, dict) for value in (own, before, now)):
        return _follow(own, before, now)
    return own if before == now else now
