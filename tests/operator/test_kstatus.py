"""How tools that wait read the resource: kstatus (Flux, kpt), by its published rules."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from tests.operator.builders import OTHER_REPO, Cluster, failed, hub_spec, resource

Verdict = Literal["InProgress", "Failed", "Current"]


def kstatus(found: dict[str, Any]) -> Verdict:
    """Generation first, then the abnormal conditions, then Ready."""
    status = found.get("status", {})
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return "InProgress"
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"


SERVING = Cluster().applied().rolled_out().published()
CHANGED = SERVING.changed(hub_spec(OTHER_REPO))
BROKEN = failed("ModelNotFound", "no repository a/b", retryable=False)


@pytest.mark.parametrize(
    ("cluster", "want"),
    [
        pytest.param(Cluster(), "InProgress", id="nobody has looked at it"),
        pytest.param(Cluster().applied().published(), "InProgress", id="pods are on their way"),
        pytest.param(SERVING, "Current", id="it is served"),
        pytest.param(CHANGED, "InProgress", id="it was changed and nobody has looked"),
        pytest.param(CHANGED.applied().published(), "InProgress", id="the old model serves meanwhile"),
        pytest.param(CHANGED.applied().started(BROKEN).published(), "Failed", id="the new model is broken"),
        pytest.param(
            Cluster(resource(hub_spec(hardware={"class": "quantum"}))).published(), "Failed", id="refused"
        ),
        pytest.param(
            SERVING.changed(hub_spec(suspend=True)).applied().rolled_out().published(),
            "InProgress",
            id="suspended",
        ),
    ],
)
def test_a_tool_that_waits_sees(cluster: Cluster, want: Verdict) -> None:
    assert kstatus(cluster.resource) == want
