"""A further node of the cluster that mounts images as volumes, which the kubelet and the container runtime of the
cluster's own node do not.

Both nodes are this machine and share its network namespace and address; sockets, ports, control groups and folders
differ.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import leftovers, network
from e2e.cluster.binaries import build_containerd
from e2e.cluster.components import KUBELET_CONFIG, Component
from e2e.cluster.containerd import Containerd
from e2e.cluster.images import PAUSE_IMAGE
from e2e.cluster.kubectl import condition_true
from e2e.cluster.layout import CGROUP, CNI_PLUGINS, DNS_ADDRESS, NODE_ADDRESS, Layout
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until

NAME = "embedserve-image-node"
RUNTIME, KUBELET = "image-containerd", "image-kubelet"
FEATURE = "ImageVolume=true"
BRIDGE, POD_RANGE = "pods1", "10.244.9.0/24"
TIMEOUT_S = 120


@contextmanager
def image_node(cluster: Cluster, references: Sequence[str]) -> Iterator[None]:
    """The node, ready to take pods of these images of the cluster's own node, and an API server that lets image volumes
    through, until the end of the block."""
    node = _ImageNode(cluster)
    remove_image_node(cluster)
    try:
        cluster.restart_api_server(FEATURE)
        node.start(references)
        yield
    finally:
        remove_image_node(cluster)


def remove_image_node(cluster: Cluster) -> None:
    """Remove the node, that of a run that was broken off too; do nothing where there is none."""
    node = _ImageNode(cluster)
    if not node.root.exists():
        return
    try:
        node.remove()
    finally:
        cluster.restart_api_server()


def load(cluster: Cluster, archive: Path) -> None:
    """An image that only this node is to have."""
    _ImageNode(cluster).containerd.load(archive)


@dataclass(frozen=True)
class _ImageNode:
    cluster: Cluster

    @property
    def layout(self) -> Layout:
        return self.cluster.layout

    @property
    def root(self) -> Path:
        """Under the cluster's state, with which it goes at the latest."""
        return self.layout.state / "image-node"

    @property
    def state(self) -> Path:
        return self.layout.containerd_state / "image-node"

    @property
    def containerd(self) -> Containerd:
        return Containerd(self.state / "containerd.sock")

    def start(self, references: Sequence[str]) -> None:
        programs = build_containerd(self.layout, self.cluster.progress)
        with self.cluster.progress.step("starting a node that mounts images"):
            self._write_configs()
            leftovers.create_cgroup(f"{CGROUP}/{NAME}")
            command = (str(programs / "containerd"), f"--config={self.root / 'containerd.toml'}")
            self.cluster.launch(Component(RUNTIME, command), programs=programs)
            self._wait(RUNTIME, "it answers", self.containerd.answers)
            self._copy([PAUSE_IMAGE, *references])
            self.cluster.launch(self._kubelet())
            self._wait(KUBELET, "the node is ready", self._is_ready)

    def remove(self) -> None:
        supervisor, kubectl = self.cluster.supervisor, self.cluster.kubectl
        if supervisor.runs(KUBELET):
            on_it = ("--all-namespaces", f"--field-selector=spec.nodeName={NAME}")
            kubectl("cordon", NAME)
            kubectl("delete", "pods", *on_it, f"--timeout={TIMEOUT_S}s", timeout_s=TIMEOUT_S + 30)
        supervisor.stop(KUBELET)
        kubectl("delete", "node", NAME, "--ignore-not-found")
        if supervisor.runs(RUNTIME):
            self.containerd.remove_all_containers()
        supervisor.stop(RUNTIME)
        leftovers.unmount_under(self.root, self.state)
        for folder in (self.state, self.root):
            shutil.rmtree(folder, ignore_errors=True)

    def _kubelet(self) -> Component:
        flags = {
            "config": self.root / "kubelet.yaml",
            "kubeconfig": self.layout.admin_kubeconfig,
            "hostname-override": NAME,
            "node-ip": NODE_ADDRESS,
            "root-dir": self.root / "kubelet",
        }
        words = (f"--{name}={value}" for name, value in flags.items())
        return Component(KUBELET, (str(self.layout.binaries / "kubelet"), *words))

    def _write_configs(self) -> None:
        self.root.mkdir(parents=True)
        (self.root / "containerd.toml").write_text(
            CONTAINERD_CONFIG.format(
                root=self.root / "containerd",
                state=self.state,
                socket=self.containerd.socket,
                pause_image=PAUSE_IMAGE,
                cni_plugins=CNI_PLUGINS,
                cni_config=self.root / "cni",
            )
        )
        config = KUBELET_CONFIG.format(
            certificates=self.layout.certificates,
            socket=self.containerd.socket,
            cgroup=f"{CGROUP}/{NAME}",
            dns=DNS_ADDRESS,
            resolver=self.layout.config / "resolv.conf",
        )
        (self.root / "kubelet.yaml").write_text(config + MORE_KUBELET_CONFIG)
        network.write_cni_config(
            self.root / "cni", self.root / "addresses", bridge_name=BRIDGE, pods=POD_RANGE
        )

    def _copy(self, references: Sequence[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="copy-", dir=self.root) as folder:
            archive = Path(folder) / "images.tar"
            self.cluster.containerd.save(references, archive)
            self.containerd.load(archive)

    def _is_ready(self) -> bool:
        node = self.cluster.kubectl.get("node", NAME)
        return node is not None and condition_true(node, "Ready")

    def _wait(self, process: str, what: str, met: Callable[[], bool]) -> None:
        supervisor = self.cluster.supervisor

        def met_while_running() -> bool:
            supervisor.require_running(process)
            return met()

        wait_until(
            f"{process}: {what}",
            met_while_running,
            timeout_s=TIMEOUT_S,
            why_not=lambda: supervisor.tail(process),
        )


CONTAINERD_CONFIG = """\
version = 3
root = "{root}"
state = "{state}"
oom_score = 0
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause_image}"

[plugins."io.containerd.cri.v1.runtime"]
  # As for the cluster's own node.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{cni_plugins}"]
  conf_dir = "{cni_config}"
"""

MORE_KUBELET_CONFIG = """\
port: 10260
healthzPort: 10258
featureGates: {ImageVolume: true}
"""
