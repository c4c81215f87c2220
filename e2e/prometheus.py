"""Debian's Prometheus as a process on the node. It is built without Kubernetes, so a server here tells it the pods."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from e2e.cluster.debian import install_missing_packages
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.layout import HOST_ADDRESS, NODE_ADDRESS
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.cluster.shell import attempt, in_node, run
from e2e.servers import answering
from e2e.services import Object
from embedserve_operator.specs.runtime_config import MANAGEMENT_PORT

PORT = 9090
URL = f"http://{NODE_ADDRESS}:{PORT}"


@contextmanager
def prometheus(cluster: Cluster, folder: Path) -> Iterator[str]:
    """Its URL, for pods and for the node. Its files lie in that folder."""
    install_missing_packages(cluster.progress, ["prometheus"])
    with ExitStack() as stack:
        pods = stack.enter_context(answering(HOST_ADDRESS, lambda: json.dumps(_targets(cluster.kubectl))))
        stack.enter_context(_running(folder, pods))
        yield URL


def values(query: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each series that a query gives now."""
    said = run(["curl", "-sfG", f"{URL}/api/v1/query", "--data-urlencode", f"query={query}"])
    return [(one["metric"], float(one["value"][1])) for one in json.loads(said)["data"]["result"]]


@contextmanager
def _running(folder: Path, pods: str) -> Iterator[None]:
    config = folder / "prometheus.yml"
    # JSON is YAML.
    config.write_text(json.dumps(_config(pods)))
    words = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={NODE_ADDRESS}:{PORT}",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as said:
        process = subprocess.Popen(in_node(words), stdout=said, stderr=subprocess.STDOUT, cwd=folder)
    try:
        wait_until(
            "Prometheus is ready",
            lambda: attempt(["curl", "-sf", f"{URL}/-/ready"]).returncode == 0,
            timeout_s=60,
            why_not=log.read_text,
        )
        yield
    finally:
        process.terminate()
        process.wait()


def _targets(kubectl: Kubectl) -> list[Object]:
    """The management ports of all services' pods, with the labels that a ServiceMonitor gives: namespace and pod."""
    found = kubectl.get("pods", "--all-namespaces", "--selector", "embedserve.dev/service") or {"items": []}
    return [
        {
            "targets": [f"{one['status']['podIP']}:{MANAGEMENT_PORT}"],
            "labels": {"namespace": one["metadata"]["namespace"], "pod": one["metadata"]["name"]},
        }
        for one in found["items"]
        if one["status"].get("podIP")
    ]


def _config(pods: str) -> Object:
    discovery = {"url": pods, "refresh_interval": "2s"}
    return {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
        "scrape_configs": [{"job_name": "embedserve", "http_sd_configs": [discovery]}],
    }
