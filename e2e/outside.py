"""Operators as processes of their own outside the cluster, each behind a proxy that can fail; restarted as the kubelet
would do it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.images import REPOSITORY
from e2e.cluster.layout import Layout
from e2e.cluster.polling import wait_until
from e2e.fault_proxy import FaultProxy, Request
from e2e.services import TIMEOUT_S

LEASE = "outside"


@dataclass
class Operator:
    """One operator that watches one namespace."""

    name: str
    namespace: str
    proxy: FaultProxy
    folder: Path
    restarts: bool = False
    """Indicates that it is started anew when it ends."""
    ends: list[tuple[float, int]] = field(default_factory=list)
    """The times at which it ended, with the exit statuses."""

    def start(self) -> None:
        self._should_run = True
        self._log = (self.folder / f"{self.name}.log").open("ab")
        self._process = self._spawn()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def send(self, number: signal.Signals) -> float:
        """Send a signal; returns when."""
        at = time.monotonic()
        self._process.send_signal(number)
        return at

    def stop(self) -> None:
        self._should_run = False
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        self._watching.join()
        self._log.close()

    def wait_ended(self) -> tuple[float, int]:
        wait_until(f"{self.name} has ended", lambda: bool(self.ends), timeout_s=TIMEOUT_S, every_s=0.02)
        return self.ends[-1]

    def took_over(self) -> Request | None:
        """Its first write of the Lease as the holder."""
        return next((request for request in self.proxy.passed if _takes(request, self.name)), None)

    def wait_leading(self) -> Request:
        wait_until(
            f"{self.name} leads", lambda: self.took_over() is not None, timeout_s=TIMEOUT_S, every_s=0.02
        )
        write = self.took_over()
        assert write is not None
        return write

    def looks(self) -> int:
        """Return how often it has looked at the Lease."""
        return sum(request.is_of_lease and not request.is_write for request in self.proxy.passed)

    def read_log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text()

    def _spawn(self) -> subprocess.Popen[bytes]:
        words = [
            "-m",
            "embedserve_operator.commands.cli",
            "run",
            "--namespace",
            self.namespace,
            "--lease-name",
            LEASE,
        ]
        words += ["--watch-namespace", self.namespace, "--identity", self.name, "--health-port", "0"]
        environment = {**os.environ, "KUBECONFIG": str(self.proxy.kubeconfig(self.folder))}
        return subprocess.Popen(
            [sys.executable, *words], env=environment, stdout=self._log, stderr=self._log, cwd=REPOSITORY
        )

    def _watch(self) -> None:
        while True:
            code = self._process.wait()
            self.ends.append((time.monotonic(), code))
            if not self._should_run or not self.restarts:
                return
            self._process = self._spawn()


def _takes(request: Request, name: str) -> bool:
    holds = (
        isinstance(request.content, dict) and request.content.get("spec", {}).get("holderIdentity") == name
    )
    return request.is_of_lease and request.is_write and request.status in (200, 201) and holds


@contextmanager
def operators(
    proxies: list[FaultProxy], namespace: str, folder: Path, *, restarts: bool
) -> Iterator[list[Operator]]:
    """Run one operator behind each proxy; the first leads, and the others have looked at its Lease."""
    all_operators = [
        Operator(name, namespace, proxy, folder, restarts)
        for name, proxy in zip(("first", "second"), proxies, strict=False)
    ]
    try:
        for operator in all_operators:
            operator.start()
            if operator is all_operators[0]:
                operator.wait_leading()
            else:
                wait_until(
                    f"{operator.name} waits",
                    lambda operator=operator: operator.looks() >= 2,  # type: ignore[misc]
                    timeout_s=TIMEOUT_S,
                )
        yield all_operators
    finally:
        for operator in all_operators:
            operator.stop()


@contextmanager
def proxied_operator(layout: Layout, namespace: str, folder: Path, *, restarts: bool) -> Iterator[Operator]:
    """Run one operator behind a proxy of its own; its log goes into the folder."""
    with (
        FaultProxy(layout).running() as proxy,
        operators([proxy], namespace, folder, restarts=restarts) as (operator,),
    ):
        yield operator
