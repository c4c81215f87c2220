"""Nodes that exist only as objects; kwok says of them, and of the pods placed on them, that all is well."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster

MARK = "kwok.x-k8s.io/node"
TIMEOUT_S = 120


@contextmanager
def fake_nodes(cluster: Cluster, nodes: Sequence[dict[str, Any]]) -> Iterator[None]:
    """The nodes, ready to take pods, until the end of the block; pods on them go with them."""
    kubectl, names = cluster.kubectl, [node["metadata"]["name"] for node in nodes]
    remove_fake_nodes(kubectl)
    # Of a node only a creation takes the status along.
    kubectl("create", "--filename", "-", stdin=json.dumps(_list([_marked(node) for node in nodes])))
    cluster.supervisor.start(
        "kwok",
        [
            str(cluster.layout.binaries / "kwok"),
            f"--kubeconfig={cluster.layout.admin_kubeconfig}",
            f"--manage-nodes-with-annotation-selector={MARK}=fake",
            # Without leases the controllers would take the nodes for dead after 50 s.
            "--node-lease-duration-seconds=40",
        ],
        {"PATH": os.environ["PATH"], "HOME": str(cluster.layout.state)},
    )
    try:
        for name in names:
            kubectl.wait_for(f"node {name} is ready", ("node", name), _is_ready, timeout_s=TIMEOUT_S)
        yield
    finally:
        try:
            remove_fake_nodes(kubectl)
        finally:
            cluster.supervisor.stop("kwok")


def remove_fake_nodes(kubectl: Kubectl) -> None:
    """Those of a run that was broken off too: pods placed on them would never start."""
    marked = ("--selector", f"{MARK}=fake")
    names = kubectl("get", "nodes", *marked, "--output=name").split()
    # The nodes go first: nothing more is placed on them then.
    kubectl("delete", "nodes", *marked)
    for name in names:
        on_it = ("--all-namespaces", f"--field-selector=spec.nodeName={name.removeprefix('node/')}")
        for pod in json.loads(kubectl("get", "pods", *on_it, "--output=json"))["items"]:
            kubectl(
                "delete",
                "pod",
                pod["metadata"]["name"],
                f"--namespace={pod['metadata']['namespace']}",
                # Its owner, or the collector of pods without a node, may be quicker.
                "--ignore-not-found",
                "--grace-period=0",
                "--force",
            )


def _marked(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node that is marked for kwok by an annotation, and for who removes it by a label."""
    meta, mark = node["metadata"], {MARK: "fake"}
    annotations, labels = meta.get("annotations", {}) | mark, meta.get("labels", {}) | mark
    return {**node, "metadata": {**meta, "annotations": annotations, "labels": labels}}


def _list(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = {c["type"]: c["status"] for c in node.get("status", {}).get("conditions", [])}
    tainted = any(taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints", []))
    return conditions.get("Ready") == "True" and not tainted
