"""How tools that wait read the resource: kstatus (Flux, kpt) by its published rules, Argo CD by our health script."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from lupa import lua51  # Argo CD runs Lua 5.1

from tests.operator.builders import OTHER_REPO, Cluster, failed, hub_spec, resource

HEALTH_SCRIPT = Path(__file__).parents[3] / "examples/gitops/argocd-health.lua"
Verdict = Literal["InProgress", "Failed", "Current"]
Health = Literal["Progressing", "Degraded", "Healthy", "Suspended"]


def kstatus(received: dict[str, Any]) -> Verdict:
    """Generation first, then the abnormal conditions, then Ready."""
    status = received.get("status", {})
    if status.get("observedGeneration") != received["metadata"]["generation"]:
        return "InProgress"
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"


def argo_health(received: dict[str, Any]) -> dict[str, str]:
    """Return the answer of the script as Argo CD calls it: the resource is the global `obj`, the answer is the script's
    value.
    """
    lua = lua51.LuaRuntime()
    lua.globals().obj = lua.table_from(received, recursive=True)
    return dict(lua.execute(HEALTH_SCRIPT.read_text(encoding="utf-8")))


SERVING = Cluster().applied().rolled_out().published()
CHANGED = SERVING.changed(hub_spec(OTHER_REPO))
BROKEN = failed("ModelNotFound", "no repository a/b", retryable=False)


@pytest.mark.parametrize(
    ("cluster", "want", "health"),
    [
        pytest.param(Cluster(), "InProgress", "Progressing", id="nobody has looked at it"),
        pytest.param(
            Cluster().applied().published(), "InProgress", "Progressing", id="pods are on their way"
        ),
        pytest.param(SERVING, "Current", "Healthy", id="it is served"),
        pytest.param(CHANGED, "InProgress", "Progressing", id="it was changed and nobody has looked"),
        pytest.param(
            CHANGED.applied().published(), "InProgress", "Progressing", id="the old model serves meanwhile"
        ),
        pytest.param(
            CHANGED.applied().started(BROKEN).published(), "Failed", "Degraded", id="the new model is broken"
        ),
        pytest.param(
            Cluster(resource(hub_spec(hardware={"class": "quantum"}))).published(),
            "Failed",
            "Degraded",
            id="refused",
        ),
        pytest.param(
            SERVING.changed(hub_spec(suspend=True)).applied().rolled_out().published(),
            "Current",
            "Suspended",
            id="suspended",
        ),
        pytest.param(
            SERVING.changed(hub_spec(replicas=0)).applied().rolled_out().published(),
            "Current",
            "Healthy",
            id="no pod is asked for",
        ),
        pytest.param(
            SERVING.changed(hub_spec(suspend=True)).applied().published(),
            "InProgress",
            "Progressing",
            id="suspended, while the last pods go",
        ),
    ],
)
def test_a_tool_that_waits_sees(cluster: Cluster, want: Verdict, health: Health) -> None:
    assert kstatus(cluster.resource) == want
    assert argo_health(cluster.resource)["status"] == health
