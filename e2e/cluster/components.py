"""The command line of every process of the node, as it runs inside the node's network namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.layout import (
    API_PORT,
    CGROUP,
    DNS_ADDRESS,
    ETCD_URL,
    NODE_ADDRESS,
    NODE_NAME,
    POD_RANGE,
    SERVICE_RANGE,
    Layout,
)


@dataclass(frozen=True)
class Component:
    name: str
    command: tuple[str, ...]


def etcd(layout: Layout) -> Component:
    return _component(
        "etcd",
        "/usr/bin/etcd",
        {
            "name": "embedserve",
            "data-dir": layout.etcd_data,
            "listen-client-urls": ETCD_URL,
            "advertise-client-urls": ETCD_URL,
            "listen-peer-urls": "http://127.0.0.1:2380",
            "initial-advertise-peer-urls": "http://127.0.0.1:2380",
            "initial-cluster": "embedserve=http://127.0.0.1:2380",
            "logger": "zap",
        },
    )


def containerd(layout: Layout) -> Component:
    return _component("containerd", "/usr/bin/containerd", {"config": containerd_config(layout)})


def api_server(layout: Layout, gates: Sequence[str] = ()) -> Component:
    """gates: features to be switched beside our own, for example `ImageVolume=true`."""
    keys = layout.certificates
    return _component(
        "kube-apiserver",
        layout.binaries / "kube-apiserver",
        {
            "advertise-address": NODE_ADDRESS,
            "secure-port": API_PORT,
            "etcd-servers": ETCD_URL,
            "service-cluster-ip-range": SERVICE_RANGE,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "client-ca-file": keys / "ca.crt",
            "tls-cert-file": keys / "apiserver.crt",
            "tls-private-key-file": keys / "apiserver.key",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": keys / "service-account.pub",
            "service-account-signing-key-file": keys / "service-account.key",
            "kubelet-certificate-authority": keys / "ca.crt",
            "kubelet-client-certificate": keys / "apiserver-kubelet-client.crt",
            "kubelet-client-key": keys / "apiserver-kubelet-client.key",
            "kubelet-preferred-address-types": "InternalIP",
            # It needs a newer etcd than Debian's. Left on, clients that ask for it fail and pause again and again.
            "feature-gates": ",".join(("WatchList=false", *gates)),
            # For aggregated APIs (the metrics adapter): the API server's own identity towards them.
            "enable-aggregator-routing": "true",
            "requestheader-client-ca-file": keys / "front-proxy-ca.crt",
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": keys / "front-proxy-client.crt",
            "proxy-client-key-file": keys / "front-proxy-client.key",
        },
    )


def controller_manager(layout: Layout) -> Component:
    keys = layout.certificates
    return _component(
        "kube-controller-manager",
        layout.binaries / "kube-controller-manager",
        {
            "kubeconfig": layout.kubeconfigs / "controller-manager",
            "authentication-kubeconfig": layout.kubeconfigs / "controller-manager",
            "authorization-kubeconfig": layout.kubeconfigs / "controller-manager",
            "bind-address": "127.0.0.1",
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "root-ca-file": keys / "ca.crt",
            "service-account-private-key-file": keys / "service-account.key",
            "cluster-signing-cert-file": keys / "ca.crt",
            "cluster-signing-key-file": keys / "ca.key",
            "requestheader-client-ca-file": keys / "front-proxy-ca.crt",
            "cluster-cidr": POD_RANGE,
            "allocate-node-cidrs": "true",
            # Autoscaling tests should not have to wait for the defaults of 15 s and 5 min.
            "horizontal-pod-autoscaler-sync-period": "5s",
            "horizontal-pod-autoscaler-downscale-stabilization": "10s",
        },
    )


def scheduler(layout: Layout) -> Component:
    return _component(
        "kube-scheduler",
        layout.binaries / "kube-scheduler",
        {
            "kubeconfig": layout.kubeconfigs / "scheduler",
            "authentication-kubeconfig": layout.kubeconfigs / "scheduler",
            "authorization-kubeconfig": layout.kubeconfigs / "scheduler",
            "bind-address": "127.0.0.1",
            "leader-elect": "false",
        },
    )


def kubelet(layout: Layout) -> Component:
    return _component(
        "kubelet",
        layout.binaries / "kubelet",
        {
            "config": kubelet_config(layout),
            "kubeconfig": layout.kubeconfigs / "kubelet",
            "hostname-override": NODE_NAME,
            "node-ip": NODE_ADDRESS,
            "root-dir": layout.kubelet,
        },
    )


def kube_proxy(layout: Layout) -> Component:
    return _component(
        "kube-proxy",
        layout.binaries / "kube-proxy",
        {
            "kubeconfig": layout.kubeconfigs / "proxy",
            "hostname-override": NODE_NAME,
            "cluster-cidr": POD_RANGE,
            "proxy-mode": "iptables",
            # The connection table's size belongs to the machine, not to this namespace.
            "conntrack-max-per-core": "0",
        },
    )


def containerd_config(layout: Layout) -> Path:
    return layout.config / "containerd.toml"


def kubelet_config(layout: Layout) -> Path:
    return layout.config / "kubelet.yaml"


def write_node_configs(layout: Layout, pause_image: str, cni_plugins: Path) -> None:
    layout.config.mkdir(parents=True, exist_ok=True)
    # Pods that ask for the node's own resolver (CoreDNS does) find none: there is nothing outside.
    resolver = layout.config / "resolv.conf"
    resolver.write_text("")
    containerd_config(layout).write_text(
        CONTAINERD_CONFIG.format(
            root=layout.containerd_root,
            state=layout.containerd_state,
            socket=layout.containerd_socket,
            pause_image=pause_image,
            cni_plugins=cni_plugins,
            cni_config=layout.config / "cni",
        )
    )
    kubelet_config(layout).write_text(
        KUBELET_CONFIG.format(
            certificates=layout.certificates,
            socket=layout.containerd_socket,
            cgroup=CGROUP,
            dns=DNS_ADDRESS,
            resolver=resolver,
        )
    )


def _component(name: str, program: str | Path, flags: dict[str, str | int | Path]) -> Component:
    return Component(name, (str(program), *(f"--{flag}={value}" for flag, value in flags.items())))


CONTAINERD_CONFIG = """\
version = 2
root = "{root}"
state = "{state}"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause_image}"
  # Without CAP_SYS_RESOURCE a score cannot be lowered, and runc then dies without a useful message.
  restrict_oom_score_adj = true
  # Pods' network namespaces lie under the state folder, so that taking the cluster down finds them all.
  netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{cni_plugins}"
  conf_dir = "{cni_config}"
"""

KUBELET_CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: {certificates}/ca.crt}}
authorization: {{mode: Webhook}}
tlsCertFile: {certificates}/kubelet.crt
tlsPrivateKeyFile: {certificates}/kubelet.key
containerRuntimeEndpoint: unix://{socket}
clusterDomain: cluster.local
clusterDNS: [{dns}]
resolvConf: {resolver}
# crun and the systemd driver do not work where cgroup v1 and v2 are both mounted; runc with cgroupfs does.
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
failCgroupV1: false
failSwapOn: false
# Images come from no registry, so a collected one would be gone for good.
imageGCHighThresholdPercent: 100
evictionHard:
  memory.available: 100Mi
  nodefs.available: 1%
  nodefs.inodesFree: 1%
  imagefs.available: 1%
shutdownGracePeriod: 0s
nodeStatusUpdateFrequency: 5s
"""
