"""Flux's source and kustomize controllers in the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.binaries import FLUX, build_flux, module_folder
from e2e.cluster.lifecycle import Cluster
from e2e.others import Other, installed, load_image, override_container, placed, rendered
from e2e.services import Object

NAMESPACE = "flux-system"
CONTROLLERS = ("source-controller", "kustomize-controller")
_FLAGS = {
    # Else what a commit asks for is waited for until its time is up, however many come after it.
    "kustomize-controller": ["--feature-gates=CancelHealthCheckOnNewRevision=true"],
}


@contextmanager
def flux(cluster: Cluster) -> Iterator[None]:
    """Installed, and running."""
    image = load_image(cluster, "flux", build_flux(cluster.layout, cluster.progress))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    objects = [namespace, *(manifest for name in CONTROLLERS for manifest in _objects(cluster, name, image))]
    with installed(cluster, Other("Flux", NAMESPACE, CONTROLLERS, objects)):
        yield


def _objects(cluster: Cluster, name: str, image: str) -> list[Object]:
    config = module_folder(FLUX, f"github.com/fluxcd/{name}") / "config"
    manifests = [
        manifest for part in ("crd", "rbac", "manager") for manifest in rendered(cluster, config / part)
    ]
    return [placed(_ours(manifest, name, image), NAMESPACE) for manifest in manifests]


def _ours(resource: Object, name: str, image: str) -> Object:
    if resource["kind"] != "Deployment":
        return resource
    (container,) = resource["spec"]["template"]["spec"]["containers"]
    arguments = [*container["args"], *_FLAGS.get(name, ())]
    return override_container(resource, image, command=[f"/{name}"], args=arguments)
