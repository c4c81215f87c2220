"""Servers for as long as a test needs them: as a process of its own, or as threads of this one."""

from __future__ import annotations

import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.cluster.errors import ClusterError
from e2e.cluster.polling import wait_until


class Server(ABC):
    """Runs inside of `with`, which begins when it answers."""

    def __init__(self, name: str, log: Path) -> None:
        self._name = name
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def answers(self) -> bool: ...

    def environment(self) -> Mapping[str, str] | None:
        """Return the environment of the server's process; None for that of this process."""
        return None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(), env=self.environment(), stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(f"{self._name} answers", self._is_up, timeout_s=30, why_not=self._log.read_text)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _is_up(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise ClusterError(f"{self._name} ended:\n{self._log.read_text()}")
        return self.answers()


@contextmanager
def served(handler: type[BaseHTTPRequestHandler], address: str) -> Iterator[str]:
    """Requests are handled by threads of this process; gives the URL."""
    with ThreadingHTTPServer((address, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{address}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
