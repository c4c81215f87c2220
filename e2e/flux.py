"""Flux's source and kustomize controllers in the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.binaries import FLUX, build_flux, module_folder
from e2e.cluster.lifecycle import Cluster
from e2e.others import Other, installed, load_image, placed, rendered, with_image
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
    objects = [namespace, *(one for name in CONTROLLERS for one in _objects(cluster, name, image))]
    with installed(cluster, Other("Flux", NAMESPACE, CONTROLLERS, objects)):
        yield


def _objects(cluster: Cluster, name: str, image: str) -> list[Object]:
    config = module_folder(FLUX, f"github.com/fluxcd/{name}") / "config"
    found = [one for part in ("crd", "rbac", "manager") for one in rendered(cluster, config / part)]
    return [placed(_ours(one, name, image), NAMESPACE) for one in found]


def _ours(found: Object, name: str, image: str) -> Object:
    if found["kind"] != "Deployment":
        return found
    (container,) = found["spec"]["template"]["spec"]["containers"]
    arguments = [*container["args"], *_FLAGS.get(name, ())]
    return with_image(found, image, command=[f"/{name}"], args=arguments)
