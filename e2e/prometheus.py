"""Debian's Prometheus as a process on the node. It is built without Kubernetes, so it is told the pods by HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from e2e.cluster.debian import install_missing_packages
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.layout import HOST_ADDRESS, NODE_ADDRESS
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.shell import attempt, in_node, run
from e2e.s3 import free_port
from e2e.server import Server, served
from e2e.services import Object
from embedserve_operator.manifests.runtime_config import MANAGEMENT_PORT


class Prometheus(Server):
    """Answers inside of `with` at `url`, for pods and for the node. discovery: URL of the list of what it asks; its
    files lie in the folder."""

    def __init__(self, folder: Path, discovery: str) -> None:
        super().__init__("Prometheus", folder / "prometheus.log")
        self._folder = folder
        self._config = folder / "prometheus.yml"
        self._port = free_port()
        # JSON is YAML.
        self._config.write_text(json.dumps(_config(discovery)))

    @property
    def url(self) -> str:
        return f"http://{NODE_ADDRESS}:{self._port}"

    def command(self) -> Sequence[str]:
        words = [
            "prometheus",
            f"--config.file={self._config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
        ]
        return in_node([*words, f"--web.listen-address={NODE_ADDRESS}:{self._port}"])

    def answers(self) -> bool:
        return attempt(["curl", "-sf", "--max-time", "5", f"{self.url}/-/ready"]).returncode == 0

    def values(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that a query gives now."""
        output = run(["curl", "-sfG", f"{self.url}/api/v1/query", "--data-urlencode", f"query={query}"])
        return [
            (series["metric"], float(series["value"][1])) for series in json.loads(output)["data"]["result"]
        ]


@contextmanager
def prometheus(cluster: Cluster, folder: Path) -> Iterator[Prometheus]:
    """One that asks the pods of all services, as they come and go."""
    install_missing_packages(cluster.progress, ["prometheus"])
    with _telling(cluster.kubectl) as discovery, Prometheus(folder, discovery) as server:
        yield server


@contextmanager
def _telling(kubectl: Kubectl) -> Iterator[str]:
    """Answers each GET with the pods of now; gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(_targets(kubectl)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler, HOST_ADDRESS) as url:
        yield url


def _targets(kubectl: Kubectl) -> list[Object]:
    """The management ports of all services' pods, with the labels that a ServiceMonitor gives: namespace and pod."""
    received = kubectl.get("pods", "--all-namespaces", "--selector", "embedserve.dev/service") or {
        "items": []
    }
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{MANAGEMENT_PORT}"],
            "labels": {"namespace": pod["metadata"]["namespace"], "pod": pod["metadata"]["name"]},
        }
        for pod in received["items"]
        if pod["status"].get("podIP")
    ]


def _config(discovery: str) -> Object:
    discovery_config = {"url": discovery, "refresh_interval": "5s"}
    return {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
        "scrape_configs": [{"job_name": "embedserve", "http_sd_configs": [discovery_config]}],
    }
