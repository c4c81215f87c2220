"""KEDA in the cluster, from its own sources and manifests; without its webhooks, which check what users write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from e2e.cluster.binaries import KEDA, build_keda, module_folder
from e2e.cluster.buildah import ImageBuild
from e2e.cluster.images import CONTAINERFILES, PREFIX
from e2e.cluster.kubectl import condition_true, deployment_available
from e2e.cluster.lifecycle import Cluster
from e2e.services import PATIENCE_S, Object

IMAGE = f"{PREFIX}embedserve-keda:1"
NAMESPACE = "keda"
DEPLOYMENTS = ("keda-operator", "keda-metrics-apiserver")
API_SERVICE = ("apiservice", "v1beta1.external.metrics.k8s.io")


@contextmanager
def keda(cluster: Cluster) -> Iterator[None]:
    """Installed, and answering for external metrics; gone afterwards, with all that was made for it."""
    programs = build_keda(cluster.layout, cluster.progress)
    image = ImageBuild(
        IMAGE, CONTAINERFILES / "keda" / "Containerfile", programs, (), {"CONTENT": programs.name}
    )
    cluster.images.ensure(image)
    objects = _manifests(cluster)
    try:
        cluster.kubectl.apply(_listed(objects))
        for name in DEPLOYMENTS:
            cluster.kubectl.wait_for(
                name,
                ("deployment", name, "--namespace", NAMESPACE),
                deployment_available,
                timeout_s=PATIENCE_S,
            )
        cluster.kubectl.wait_for(
            "the API of external metrics",
            API_SERVICE,
            lambda found: condition_true(found, "Available"),
            timeout_s=PATIENCE_S,
        )
        yield
    finally:
        # First what blocks the deletion of every namespace while nobody answers for it.
        cluster.kubectl("delete", *API_SERVICE, "--ignore-not-found")
        cluster.kubectl(
            "delete",
            "--ignore-not-found",
            "--filename",
            "-",
            stdin=_listed(objects),
            timeout_s=PATIENCE_S,
        )


def _manifests(cluster: Cluster) -> list[Object]:
    folder = module_folder(KEDA, "github.com/kedacore/keda/v2") / "config" / "minimal"
    rendered = cluster.kubectl("kustomize", str(folder), "--load-restrictor=LoadRestrictionsNone")
    return [_here(found) for found in yaml.safe_load_all(rendered)]


def _here(found: Object) -> Object:
    """With our image, smaller, and ready sooner: the manifests wait for twenty seconds before the first look."""
    if found["kind"] == "Deployment":
        (container,) = found["spec"]["template"]["spec"]["containers"]
        container |= {"image": IMAGE, "imagePullPolicy": "Never"}
        for probe in ("livenessProbe", "readinessProbe"):
            container[probe]["initialDelaySeconds"] = 2
        container["resources"]["requests"] = {"cpu": "10m", "memory": "50Mi"}
    return found


def _listed(objects: list[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
