"""Every path and address of the cluster, in one place.

Under the user's cache folder lie ``builds`` and ``buildah`` (binaries, images by version, kept for ever) and
``cluster`` (the one cluster's state; its images outlive ``down``, so that the next ``up`` is quick).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

NAMESPACE = "embedserve"
"""Name of the network namespace that the node and all its pods live in."""

CGROUP = "embedserve"
"""The control group that all pods live under."""

NODE_NAME = "embedserve-node"
HOST_ADDRESS = "10.250.0.1"
NODE_ADDRESS = "10.250.0.2"
API_PORT = 6443
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
POD_RANGE = "10.244.0.0/16"
NODE_POD_RANGE = "10.244.0.0/24"
ETCD_URL = "http://127.0.0.1:2379"

CNI_PLUGINS = Path("/usr/lib/cni")
NETNS_PATH = Path("/run/netns") / NAMESPACE
OWNER_FILE = Path("/run") / NAMESPACE / "owner"
"""Names the cache folder that the running cluster belongs to."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "embedserve"


@dataclass(frozen=True)
class Layout:
    """The places of files on disk."""

    root: Path

    @classmethod
    def of_user(cls) -> Layout:
        return cls(cache_folder())

    @property
    def builds(self) -> Path:
        return self.root / "builds"

    @property
    def buildah(self) -> Path:
        return self.root / "buildah"

    @property
    def state(self) -> Path:
        return self.root / "cluster"

    @property
    def binaries(self) -> Path:
        """One folder of links to the binaries in use, so that it can be put on PATH."""
        return self.state / "bin"

    @property
    def certificates(self) -> Path:
        return self.state / "certificates"

    @property
    def kubeconfigs(self) -> Path:
        return self.state / "kubeconfigs"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.kubeconfigs / "admin"

    @property
    def config(self) -> Path:
        return self.state / "config"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def processes(self) -> Path:
        return self.state / "processes"

    @property
    def etcd(self) -> Path:
        return self.state / "etcd"

    @property
    def kubelet(self) -> Path:
        return self.state / "kubelet"

    @property
    def volumes(self) -> Path:
        return self.state / "volumes"

    @property
    def cluster_lock(self) -> Path:
        return self.root / "cluster.lock"

    @property
    def images_lock(self) -> Path:
        return self.root / "images.lock"

    @property
    def release_lock(self) -> Path:
        return self.root / "release.lock"

    @property
    def fingerprint(self) -> Path:
        """Says what definition the running cluster was started from; written when it is up."""
        return self.state / "fingerprint"

    @property
    def containerd_root(self) -> Path:
        return self.state / "containerd"

    @property
    def containerd_state(self) -> Path:
        # Short and on tmpfs: shims put their sockets' and mounts' names under it.
        return Path("/run") / NAMESPACE / "containerd"

    @property
    def containerd_socket(self) -> Path:
        return self.containerd_state / "containerd.sock"

    @property
    def etcd_data(self) -> Path:
        return self.etcd / "data"
