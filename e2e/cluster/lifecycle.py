"""Bring the one cluster up, reuse it while it is healthy, and take it down again without a trace."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import components, leftovers, network
from e2e.cluster.addons import apply_addons, wait_for_addons
from e2e.cluster.binaries import build_binaries
from e2e.cluster.certificates import write_certificates
from e2e.cluster.components import Component
from e2e.cluster.containerd import Containerd
from e2e.cluster.contents import digest
from e2e.cluster.debian import install_missing_packages
from e2e.cluster.errors import ClusterError
from e2e.cluster.images import PAUSE_IMAGE, ImageLoader, load_system_images
from e2e.cluster.kubeconfigs import write_kubeconfigs
from e2e.cluster.kubectl import Kubectl, condition_true
from e2e.cluster.layout import CNI_PLUGINS, NODE_NAME, OWNER_FILE, Layout
from e2e.cluster.locking import only_one
from e2e.cluster.polling import wait_until
from e2e.cluster.processes import Supervisor
from e2e.cluster.progress import Progress

PROCESS_NAMES = (
    "containerd",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
)
# Consumers first: each process is stopped while what it talks to still answers. containerd comes after.
STOP_ORDER = (
    "kwok",
    "image-kubelet",
    "kubelet",
    "kube-scheduler",
    "kube-controller-manager",
    "kube-proxy",
    "kube-apiserver",
    "etcd",
)
# The files that a running cluster is made from; a change of them means that it has to be started afresh.
DEFINITION = ("go", "containerfiles", "manifests", "components.py", "network.py")


@dataclass(frozen=True)
class Cluster:
    """The handle that everything else works with."""

    layout: Layout
    progress: Progress

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.layout.binaries / "kubectl", self.layout.admin_kubeconfig)

    @property
    def helm(self) -> Path:
        return self.layout.binaries / "helm"

    @property
    def supervisor(self) -> Supervisor:
        return Supervisor(self.layout.processes, self.layout.logs)

    @property
    def containerd(self) -> Containerd:
        return Containerd(self.layout.containerd_socket)

    @property
    def images(self) -> ImageLoader:
        return ImageLoader(self.layout, self.progress)

    def complaint(self) -> str:
        """Return why the cluster cannot be used as it is; empty when it can."""
        dead = [name for name in PROCESS_NAMES if not self.supervisor.runs(name)]
        if len(dead) == len(PROCESS_NAMES):
            return "not running"
        if dead:
            return f"not running: {', '.join(dead)}"
        # In this order: each question can be asked only when the ones before it are answered.
        for holds, otherwise in (
            (network.network_exists, "the node's network namespace is gone"),
            (self.layout.fingerprint.exists, "it never came up completely"),
            (self._is_as_defined, "its definition has changed"),
            (self.containerd.answers, "containerd does not answer"),
            (self._api_ready, "the API server is not ready"),
            (self._node_ready, f"node {NODE_NAME} is not ready"),
        ):
            if not holds():
                return otherwise
        return ""

    def up(self) -> None:
        _require_root()
        _require_no_other(self.layout)
        with only_one(self.layout.cluster_lock):
            complaint = self.complaint()
            if not complaint:
                self.progress.say("cluster: running and healthy, reused")
                return
            if self._has_traces():
                self.progress.say(f"cluster: {complaint}; clearing it away")
                self._clear()
            self._start()

    def down(self) -> None:
        _require_root()
        with only_one(self.layout.cluster_lock), self.progress.step("taking the cluster down"):
            self._clear()

    def restart_api_server(self, *gates: str) -> None:
        """Restart the API server with these feature gates beside our own."""
        self.supervisor.stop("kube-apiserver")
        self.launch(components.api_server(self.layout, gates))
        self._wait_for("kube-apiserver", "it is ready", self._api_ready)

    def _start(self) -> None:
        install_missing_packages(self.progress)
        programs = build_binaries(self.layout, self.progress)
        with self.progress.step("starting etcd, containerd and the API server"):
            self._prepare(programs)
            for component in (components.etcd, components.containerd, components.api_server):
                self.launch(component(self.layout))
            self._wait_for("containerd", "it answers", self.containerd.answers)
        load_system_images(self.images, programs)
        with self.progress.step("waiting for the API server"):
            # Controllers and scheduler leave if they come before the API server's own roles are there.
            self._wait_for("kube-apiserver", "it is ready", self._api_ready)
        with self.progress.step(
            "starting controllers, scheduler, kubelet and proxy; waiting for node and DNS"
        ):
            for component in (components.controller_manager, components.scheduler, components.kubelet):
                self.launch(component(self.layout))
            apply_addons(self.kubectl, self.layout)
            self.launch(components.kube_proxy(self.layout))
            self._wait_for("kubelet", "the node is ready", self._node_ready)
            wait_for_addons(self.kubectl)
        self.layout.fingerprint.write_text(_definition())
        self.progress.say("cluster: up")

    def _prepare(self, programs: dict[str, Path]) -> None:
        layout = self.layout
        OWNER_FILE.parent.mkdir(exist_ok=True)
        OWNER_FILE.write_text(str(layout.root))
        layout.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        layout.volumes.mkdir(exist_ok=True)
        layout.binaries.mkdir(exist_ok=True)
        for name, program in programs.items():
            (layout.binaries / name).symlink_to(program)
        write_certificates(layout.certificates)
        write_kubeconfigs(layout.kubeconfigs, layout.certificates)
        components.write_node_configs(layout, PAUSE_IMAGE, CNI_PLUGINS)
        network.write_cni_config(layout.config / "cni", layout.state / "addresses")
        network.create_network()
        leftovers.create_cgroup()

    def launch(self, component: Component, *, programs: Path | None = None) -> None:
        """programs: a folder whose programs go before the machine's."""
        folders = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        environment = {
            "PATH": ":".join([*([str(programs)] if programs is not None else []), *folders]),
            "HOME": str(Path.home()),
        }
        self.supervisor.start(component.name, component.command, environment)

    def _wait_for(self, process: str, what: str, met: Callable[[], bool]) -> None:
        def met_while_running() -> bool:
            self.supervisor.require_running(process)
            return met()

        wait_until(
            f"{process}: {what}",
            met_while_running,
            timeout_s=120,
            why_not=lambda: (
                f"the last lines of {self.supervisor.log_of(process)}:\n{self.supervisor.tail(process)}"
            ),
        )

    def _is_as_defined(self) -> bool:
        return self.layout.fingerprint.read_text() == _definition()

    def _api_ready(self) -> bool:
        return self.kubectl.attempt("get", "--raw", "/readyz", timeout_s=10).stdout == "ok"

    def _node_ready(self) -> bool:
        result = self.kubectl.attempt("get", "node", NODE_NAME, "--output", "json", timeout_s=10)
        return result.returncode == 0 and condition_true(json.loads(result.stdout), "Ready")

    def _has_traces(self) -> bool:
        permanent = {self.layout.containerd_root}
        state = self.layout.state
        return network.network_exists() or (
            state.exists() and any(path not in permanent for path in state.iterdir())
        )

    def _clear(self) -> None:
        """Works from any state, also after a crash or a restart of the machine."""
        layout, supervisor = self.layout, self.supervisor
        for name in STOP_ORDER:
            supervisor.stop(name)
        orderly = supervisor.runs("containerd") and self.containerd.answers()
        if orderly:
            self.containerd.remove_all_containers()
        for name in ("image-containerd", "containerd"):
            supervisor.stop(name)
        leftovers.end_pod_processes(layout)
        leftovers.unmount_all(layout)
        leftovers.remove_cgroup()
        network.remove_network()
        for path in layout.state.iterdir() if layout.state.exists() else ():
            if path != layout.containerd_root:
                _remove(path)
        # Images are worth keeping, but not together with records of containers that no longer exist.
        _remove(layout.containerd_root / "io.containerd.grpc.v1.cri" if orderly else layout.containerd_root)
        _remove(layout.containerd_state)
        _remove(OWNER_FILE)
        if leftovers.leftover_processes(layout):
            raise ClusterError("processes of the cluster are still there")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _definition() -> str:
    folder = Path(__file__).parent
    return digest([folder / name for name in DEFINITION], [])


def _require_no_other(layout: Layout) -> None:
    """A cluster under another cache folder would have the same addresses."""
    if not OWNER_FILE.exists():
        return
    owner = Path(OWNER_FILE.read_text())
    supervisor = Supervisor(Layout(owner).processes, Layout(owner).logs)
    if owner != layout.root and any(supervisor.runs(name) for name in PROCESS_NAMES):
        raise ClusterError(
            f"a cluster with its state under {owner} is running; take it down first: "
            f"XDG_CACHE_HOME={owner.parent} python -m e2e.cluster down"
        )


def _require_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError("the cluster needs root: namespaces, mounts and the kubelet do")
