"""Every pod satisfies the restricted Pod Security profile, whatever the manifest."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedserve_operator.commands.render import render_file
from tests.operator.builders import SETTINGS

MANIFESTS = sorted((Path(__file__).parent / "manifests").glob("*.yaml"))


@cache
def children_of(manifest: Path) -> list[Any]:
    """Not to be changed: each manifest is rendered once."""
    return list(
        yaml.load_all(render_file(manifest.read_text(encoding="utf-8"), SETTINGS), Loader=yaml.CSafeLoader)
    )


def pod_specs(manifest: Path, *kinds: str) -> list[Any]:
    wanted = kinds or ("Deployment", "Job")
    return [child["spec"]["template"]["spec"] for child in children_of(manifest) if child["kind"] in wanted]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_pods_are_restricted(manifest: Path) -> None:
    for spec in pod_specs(manifest):
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


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_stop_leaves_time_to_drain_and_to_finish(manifest: Path) -> None:
    configs = {
        c["metadata"]["name"]: yaml.safe_load(c["data"]["runtime.yaml"])
        for c in children_of(manifest)
        if c["kind"] == "ConfigMap"
    }
    for spec in pod_specs(manifest, "Deployment"):
        server = configs[spec["volumes"][0]["configMap"]["name"]]["server"]
        needed = server["endpoint_drain_seconds"] + server["shutdown_grace_seconds"]
        assert spec["terminationGracePeriodSeconds"] > needed


def test_only_the_fetching_container_gets_the_token() -> None:
    (spec,) = pod_specs(Path(__file__).parent / "manifests" / "every-field.yaml")
    given = [c["name"] for c in [*spec["initContainers"], *spec["containers"]] if "secretKeyRef" in str(c)]
    assert given == ["fetch"]
