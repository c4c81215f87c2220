"""What runs as pods in every cluster: DNS and a default StorageClass."""

from __future__ import annotations

from pathlib import Path
from string import Template

from e2e.cluster.images import COREDNS_IMAGE, HELPER_IMAGE, LOCAL_PATH_IMAGE
from e2e.cluster.kubectl import Kubectl, deployment_available
from e2e.cluster.layout import DNS_ADDRESS, Layout

MANIFESTS = Path(__file__).parent / "manifests"
DEPLOYMENTS = (("kube-system", "coredns"), ("local-path-storage", "local-path-provisioner"))


def apply_addons(kubectl: Kubectl, layout: Layout) -> None:
    values = {
        "COREDNS_IMAGE": COREDNS_IMAGE,
        "LOCAL_PATH_IMAGE": LOCAL_PATH_IMAGE,
        "HELPER_IMAGE": HELPER_IMAGE,
        "DNS_ADDRESS": DNS_ADDRESS,
        "VOLUMES": str(layout.volumes),
    }
    for path in sorted(MANIFESTS.glob("*.yaml")):
        kubectl.apply(Template(path.read_text()).substitute(values))


def wait_for_addons(kubectl: Kubectl) -> None:
    for namespace, name in DEPLOYMENTS:
        kubectl.wait_for(
            f"deployment {name} is available",
            ("deployment", name, "--namespace", namespace),
            deployment_available,
            timeout_s=120,
        )
