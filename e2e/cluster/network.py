"""The node's network namespace: a veth pair to the root namespace and no way out.

Service and pod addresses exist only inside. Packets for anywhere else are refused at once ("unreachable")
instead of leaving the machine or timing out.
"""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.layout import (
    HOST_ADDRESS,
    NAMESPACE,
    NETNS_PATH,
    NODE_ADDRESS,
    NODE_POD_RANGE,
    SERVICE_RANGE,
)
from e2e.cluster.shell import attempt, in_node, run

HOST_LINK = "embedserve0"
NODE_LINK = "eth0"
SERVICE_LINK = "services0"
POD_BRIDGE = "pods0"

# Answers between pods cross only the bridge, which the kernel shows to iptables only if told so.
NODE_SYSCTLS = (
    ("net/ipv4/ip_forward", "1"),
    ("net/bridge/bridge-nf-call-iptables", "1"),
)


def network_exists() -> bool:
    return NETNS_PATH.exists() and _host_link_exists()


def _host_link_exists() -> bool:
    return (Path("/sys/class/net") / HOST_LINK).exists()


def create_network() -> None:
    run(["ip", "netns", "add", NAMESPACE])
    run(["ip", "link", "add", HOST_LINK, "type", "veth", "peer", "name", NODE_LINK, "netns", NAMESPACE])
    run(["ip", "address", "add", f"{HOST_ADDRESS}/24", "dev", HOST_LINK])
    run(["ip", "link", "set", HOST_LINK, "up"])
    for command in (
        "ip link set lo up",
        f"ip address add {NODE_ADDRESS}/24 dev {NODE_LINK}",
        f"ip link set {NODE_LINK} up",
        # Without some route to a service address connect() fails before iptables can translate it.
        f"ip link add {SERVICE_LINK} type bridge",
        f"ip link set {SERVICE_LINK} up",
        f"ip route add {SERVICE_RANGE} dev {SERVICE_LINK} src {NODE_ADDRESS}",
        "ip route add unreachable default",
    ):
        run(in_node(command.split()))
    for key, value in NODE_SYSCTLS:
        path = Path("/proc/sys") / key
        if path.parent.exists():
            run(in_node(["sh", "-c", f"echo {value} > {path}"]))


def remove_network() -> None:
    """The namespace's own links, routes and iptables rules go with it."""
    if _host_link_exists():
        run(["ip", "link", "delete", HOST_LINK])
    if NETNS_PATH.exists():
        run(["ip", "netns", "delete", NAMESPACE])
    names = NETNS_PATH.parent
    if names.exists() and not any(names.iterdir()):
        # "ip netns" mounts the folder onto itself for the first namespace and leaves that.
        attempt(["umount", names])


def write_cni_config(
    folder: Path, state: Path, *, bridge_name: str = POD_BRIDGE, pods: str = NODE_POD_RANGE
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(state),
    }
    bridge = {
        "type": "bridge",
        "bridge": bridge_name,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": addresses,
    }
    plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
    config = {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}
    (folder / "10-pods.conflist").write_text(json.dumps(config, indent=2))
