"""Every pod satisfies the restricted Pod Security profile, whatever the spec."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml

from tests.operator.rendering.case import render
from tests.operator.rendering.cases import SPECS
from tests.operator.rendering.settings import EVERY_FIELD


@cache
def children_of(name: str) -> list[Any]:
    """Return the children of a spec, which must not be changed: each spec is rendered once."""
    return list(yaml.load_all(render(SPECS[name]), Loader=yaml.CSafeLoader))


def pod_specs(name: str, *kinds: str) -> list[Any]:
    selected = kinds or ("Deployment", "Job")
    return [child["spec"]["template"]["spec"] for child in children_of(name) if child["kind"] in selected]


@pytest.mark.parametrize("name", SPECS)
def test_pods_are_restricted(name: str) -> None:
    for spec in pod_specs(name):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        allowed = {"configMap", "csi", "emptyDir", "image", "persistentVolumeClaim", "secret"}
        assert all(allowed & volume.keys() for volume in spec["volumes"])
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", SPECS)
def test_a_stop_leaves_time_to_drain_and_to_finish(name: str) -> None:
    configs = {
        c["metadata"]["name"]: yaml.safe_load(c["data"]["runtime.yaml"])
        for c in children_of(name)
        if c["kind"] == "ConfigMap"
    }
    for spec in pod_specs(name, "Deployment"):
        server = configs[spec["volumes"][0]["configMap"]["name"]]["server"]
        needed = server["endpoint_drain_seconds"] + server["shutdown_grace_seconds"]
        assert spec["terminationGracePeriodSeconds"] > needed


def test_only_the_fetching_container_gets_the_token() -> None:
    (name,) = (name for name, spec in SPECS.items() if spec is EVERY_FIELD)
    (spec,) = pod_specs(name)
    names = [c["name"] for c in [*spec["initContainers"], *spec["containers"]] if "secretKeyRef" in str(c)]
    assert names == ["fetch"]
