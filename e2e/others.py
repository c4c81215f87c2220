"""Controllers of others in the cluster: built from their Go modules, installed by their own manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

from e2e.cluster.buildah import ImageBuild
from e2e.cluster.images import CONTAINERFILES, PREFIX
from e2e.cluster.kubectl import deployment_available
from e2e.cluster.lifecycle import Cluster
from e2e.services import TIMEOUT_S, Object

_OF_THE_CLUSTER = {
    "APIService",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Namespace",
}


class Other(NamedTuple):
    """`first`: of what is installed, what has to go before the rest."""

    name: str
    namespace: str
    deployments: Sequence[str]
    objects: Sequence[Object]
    first: Sequence[Sequence[str]] = ()


def load_image(cluster: Cluster, name: str, programs: Path) -> str:
    """Build an image of programs by the Containerfile of that name, and load it; returns its reference."""
    reference = f"{PREFIX}embedserve-{name}:1"
    containerfile = CONTAINERFILES / name / "Containerfile"
    cluster.images.ensure(ImageBuild(reference, containerfile, programs, (), {"CONTENT": programs.name}))
    return reference


def rendered(cluster: Cluster, folder: Path) -> list[Object]:
    """Return the objects that a folder with a kustomization stands for."""
    words = ("kustomize", str(folder), "--load-restrictor=LoadRestrictionsNone")
    return list(yaml.safe_load_all(cluster.kubectl(*words)))


def placed(resource: Object, namespace: str) -> Object:
    """Return an object in that namespace, where the manifests name one of their own."""
    if resource["kind"] not in _OF_THE_CLUSTER:
        resource["metadata"]["namespace"] = namespace
    for subject in resource.get("subjects", []):
        subject["namespace"] = namespace
    return resource


def override_container(resource: Object, image: str, **container: object) -> Object:
    """Give the only container of a Deployment this image, small requests, probes that start early and other fields."""
    (only_container,) = resource["spec"]["template"]["spec"]["containers"]
    only_container |= {"image": image, "imagePullPolicy": "Never", **container}
    for probe in ("livenessProbe", "readinessProbe"):
        only_container.get(probe, {})["initialDelaySeconds"] = 2
    only_container["resources"] = {"requests": {"cpu": "10m", "memory": "50Mi"}}
    return resource


@contextmanager
def installed(cluster: Cluster, project: Other) -> Iterator[None]:
    """There and available; gone afterwards, with all that was made for it."""
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(project.objects)})
    try:
        with cluster.progress.step(f"installing {project.name}"):
            cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename", "-", stdin=listed)
            for name in project.deployments:
                words = ("deployment", name, "--namespace", project.namespace)
                cluster.kubectl.wait_for(name, words, deployment_available, timeout_s=TIMEOUT_S)
        yield
    finally:
        for reference in project.first:
            cluster.kubectl("delete", *reference, "--ignore-not-found", timeout_s=TIMEOUT_S)
        cluster.kubectl("delete", "--ignore-not-found", "--filename", "-", stdin=listed, timeout_s=TIMEOUT_S)
