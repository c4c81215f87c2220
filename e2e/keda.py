"""KEDA in the cluster, without its webhooks, which check what users write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.binaries import KEDA, build_keda, module_folder
from e2e.cluster.kubectl import condition_true
from e2e.cluster.lifecycle import Cluster
from e2e.others import Other, installed, load_image, override_container, rendered
from e2e.services import TIMEOUT_S

NAMESPACE = "keda"
DEPLOYMENTS = ("keda-operator", "keda-metrics-apiserver")
API_SERVICE = ("apiservice", "v1beta1.external.metrics.k8s.io")


@contextmanager
def keda(cluster: Cluster) -> Iterator[None]:
    """Installed, and answering for external metrics."""
    image = load_image(cluster, "keda", build_keda(cluster.layout, cluster.progress))
    folder = module_folder(KEDA, "github.com/kedacore/keda/v2") / "config" / "minimal"
    objects = [
        override_container(manifest, image) if manifest["kind"] == "Deployment" else manifest
        for manifest in rendered(cluster, folder)
    ]
    # First of all goes what blocks the deletion of every namespace while nobody answers for it.
    with installed(cluster, Other("KEDA", NAMESPACE, DEPLOYMENTS, objects, first=[API_SERVICE])):
        cluster.kubectl.wait_for(
            "the API of external metrics",
            API_SERVICE,
            lambda resource: condition_true(resource, "Available"),
            timeout_s=TIMEOUT_S,
        )
        yield
