"""A real S3 server (versitygw, on a folder) as a process, for as long as a test needs it; of the cluster's node where
its pods are to reach it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.layout import NODE_ADDRESS
from e2e.cluster.shell import in_node
from e2e.server import Server

KEYS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "embedserve-tests",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret-of-anybody",
    "AWS_REGION": "us-east-1",
}
"""The variables that a client must have in its environment."""


class S3Server(Server):
    """Buckets are folders under `root`. Listens on a free port inside of `with`: of this machine, or of the node."""

    def __init__(self, program: Path, root: Path, log: Path, *, on_node: bool = False) -> None:
        super().__init__("the S3 server", log)
        self._program = program
        self._root = root
        self._port = free_port()
        self._host = NODE_ADDRESS if on_node else "127.0.0.1"
        self._on_node = on_node

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    def command(self) -> Sequence[str]:
        words = [str(self._program), "--port", f"{self._host}:{self._port}", "posix", str(self._root)]
        return in_node(words) if self._on_node else words

    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
        }

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self._host, self._port)) == 0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
