"""Builds the ConfigMap that tells pods which commit a branch was found to stand for.

Pods read it when they start to fetch, and only if it exists. Creating it does not change their template, so
nothing restarts.
"""

from __future__ import annotations

import re

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.metadata import add_fingerprint, build_metadata
from embedserve_operator.state.resource import Resource

KEY = "commit"
VARIABLE = "EMBEDSERVE_MODEL__COMMIT"
_COMMIT = re.compile(r"[0-9a-f]{40}")


def build_pin_name(resource: Resource, revision: str) -> str:
    """Return the name of the pin of a revision."""
    return f"{resource.key.name}-{revision}-pin"


def is_movable(spec: EmbeddingServiceSpec) -> bool:
    """Return whether the source names something that may stand for another commit later."""
    hub = spec.model.source.hugging_face
    return hub is not None and not is_commit(hub.revision)


def is_commit(revision: str) -> bool:
    """Return whether a revision is a commit and not a branch or tag."""
    return _COMMIT.fullmatch(revision) is not None


def build_pin(resource: Resource, revision: str, commit: str) -> Manifest:
    """Return the pin of a revision.

    It is immutable: with another commit in it, the next pod would serve another model than the pods beside it.
    """
    return add_fingerprint(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": build_metadata(resource, build_pin_name(resource, revision), revision),
            "data": {KEY: commit},
            "immutable": True,
        }
    )


def find_pin_name(workload: Manifest) -> str | None:
    """Return the name of the pin that the pods of a Deployment or a Job read; None where they read none."""
    pod_spec = workload["spec"]["template"]["spec"]
    for container in (*pod_spec.get("initContainers", ()), *pod_spec["containers"]):
        for variable in container.get("env", ()):
            if variable["name"] == VARIABLE:
                return str(variable["valueFrom"]["configMapKeyRef"]["name"])
    return None


def build_pin_variable(resource: Resource, revision: str) -> Manifest:
    """Return the variable by which a fetch gets the commit, once there is one."""
    source = {"name": build_pin_name(resource, revision), "key": KEY, "optional": True}
    return {"name": VARIABLE, "valueFrom": {"configMapKeyRef": source}}
