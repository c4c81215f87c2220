"""A hub on the cluster's node, as a process: a test has its repositories, its log and its faults at hand."""

from __future__ import annotations

import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.cluster.layout import NODE_ADDRESS, Layout
from e2e.cluster.shell import in_node
from e2e.hub.faults import FaultKind
from e2e.hub.server import FAULTS_PATH, REQUESTS_PATH
from e2e.s3 import free_port
from e2e.server import Server

ANY_FILE = "*/resolve/*"


class NodeHub(Server):
    """Serves `root` inside of `with`, where pods reach it at `url`; over HTTPS with a certificate of the cluster's own
    authority where `layout` is given."""

    def __init__(self, root: Path, log: Path, layout: Layout | None = None) -> None:
        super().__init__("the node's hub", log)
        self.root = root
        self._layout = layout
        self._port = free_port()
        self._tls: ssl.SSLContext | None = None
        if layout is not None:
            self._tls = ssl.create_default_context(cafile=str(layout.certificates / "ca.crt"))

    @property
    def url(self) -> str:
        return f"{'http' if self._layout is None else 'https'}://{NODE_ADDRESS}:{self._port}"

    def command(self) -> Sequence[str]:
        words = [sys.executable, "-m", "e2e.hub", "--root", str(self.root), "--host", NODE_ADDRESS]
        words += ["--port", str(self._port)]
        if self._layout is not None:
            certificates = self._layout.certificates
            words += ["--certificate", str(certificates / "apiserver.crt")]
            words += ["--key", str(certificates / "apiserver.key")]
        return in_node(words)

    def answers(self) -> bool:
        try:
            self._ask("GET", REQUESTS_PATH)
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def requests(self) -> list[dict[str, Any]]:
        """Those that were answered so far: method, path, status, sent_bytes."""
        requests: list[dict[str, Any]] = json.loads(self._ask("GET", REQUESTS_PATH))
        return requests

    def sent(self, name: str) -> int:
        """Bytes of a file that were sent."""
        return sum(request["sent_bytes"] for request in self.requests() if request["path"].endswith(name))

    def misbehave(
        self, kind: FaultKind, *, path: str = ANY_FILE, amount: int = 1, times: int | None = None
    ) -> None:
        fault = {"kind": kind.value, "path": path, "amount": amount, "times": times}
        self._ask("POST", FAULTS_PATH, json.dumps(fault).encode())

    def behave(self) -> None:
        self._ask("DELETE", FAULTS_PATH)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> str:
        request = urllib.request.Request(self.url + path, data=body, method=method)
        with urllib.request.urlopen(request, context=self._tls, timeout=30) as answer:
            content: bytes = answer.read()
        return content.decode()
