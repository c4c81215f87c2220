"""A real S3 server (versitygw, on a folder) as a process, for as long as a test needs it; of the cluster's node where
its pods are to reach it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import NODE_ADDRESS
from e2e.cluster.polling import wait_until
from e2e.cluster.shell import in_node

KEYS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "embedserve-tests",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret-of-anybody",
    "AWS_REGION": "us-east-1",
}
"""What a client must have in its environment."""


class S3Server:
    """Buckets are folders under `root`. Listens on a free port inside of `with`: of this machine, or of the node."""

    def __init__(self, program: Path, root: Path, log: Path, *, on_node: bool = False) -> None:
        self._program = program
        self._root = root
        self._log = log
        self._port = free_port()
        self._host = NODE_ADDRESS if on_node else "127.0.0.1"
        self._on_node = on_node
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    def __enter__(self) -> Self:
        environment = {
            **os.environ,
            "ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
        }
        words = [str(self._program), "--port", f"{self._host}:{self._port}", "posix", str(self._root)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                in_node(words) if self._on_node else words,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until("the S3 server listens", self._listens, timeout_s=30, why_not=self._log.read_text)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _listens(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise ClusterError(f"the S3 server ended:\n{self._log.read_text()}")
        with socket.socket() as probe:
            return probe.connect_ex((self._host, self._port)) == 0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
