"""Start, recognize and end the cluster's processes.

A process is recorded by its id together with its start time and the boot it belongs to: an id that the kernel
has given to another process since then is never signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import NETNS_PATH
from e2e.cluster.polling import wait_until

_HANDLES: list[subprocess.Popen[bytes]] = []
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ProcessIdentity:
    pid: int
    start_ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The identity of the process that has this id now, or nothing when none runs."""
        start_ticks = _start_ticks(pid)
        return None if start_ticks is None else cls(pid, start_ticks, BOOT_ID.read_text().strip())

    def runs(self) -> bool:
        return ProcessIdentity.of(self.pid) == self


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in brackets and may hold spaces; the fields after it are plain.
    fields = stat.rpartition(")")[2].split()
    state, start_ticks = fields[0], fields[19]
    return None if state in "ZX" else int(start_ticks)


@dataclass(frozen=True)
class Supervisor:
    """Keeps a record and a log file for each named process."""

    records: Path
    logs: Path

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a process inside the node's network namespace, in a session of its own."""
        for folder in (self.records, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        with self.log_of(name).open("ab") as log:
            process = subprocess.Popen(
                ["nsenter", f"--net={NETNS_PATH}", "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                cwd="/",
                start_new_session=True,
            )
        # Python warns of a handle that goes before its process; this one is ended by its identity.
        _HANDLES.append(process)
        identity = ProcessIdentity.of(process.pid)
        if identity is None:
            raise ClusterError(f"{name} ended at once\n{self.tail(name)}")
        self._record_of(name).write_text(json.dumps(asdict(identity)))

    def log_of(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(path.stem for path in self.records.glob("*.json")))

    def runs(self, name: str) -> bool:
        identity = self._identity(name)
        return identity is not None and identity.runs()

    def require_running(self, name: str) -> None:
        if not self.runs(name):
            raise ClusterError(f"{name} has ended; the last lines of {self.log_of(name)}:\n{self.tail(name)}")

    def tail(self, name: str, lines: int = 15) -> str:
        path = self.log_of(name)
        if not path.exists():
            return "(no log)"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, name: str) -> None:
        """Stop the processes with little patience: all that these processes keep is thrown away with them."""
        identity = self._identity(name)
        if identity is not None:
            end_process(identity, grace_s=2)
        self._record_of(name).unlink(missing_ok=True)

    def _record_of(self, name: str) -> Path:
        return self.records / f"{name}.json"

    def _identity(self, name: str) -> ProcessIdentity | None:
        try:
            record = json.loads(self._record_of(name).read_text())
            return ProcessIdentity(record["pid"], record["start_ticks"], record["boot"])
        except (FileNotFoundError, ValueError, KeyError):
            return None


def end_process(identity: ProcessIdentity, grace_s: float) -> None:
    """Ask with SIGTERM, then insist with SIGKILL; returns when the process is gone."""
    for sign, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10)):
        if not identity.runs():
            break
        try:
            os.kill(identity.pid, sign)
        except ProcessLookupError:
            break
        try:
            wait_until(
                f"process {identity.pid} ends",
                lambda: not identity.runs(),
                timeout_s=patience_s,
                every_s=0.05,
            )
        except ClusterError:
            if sign == signal.SIGKILL:
                raise
    _reap(identity.pid)


def _reap(pid: int) -> None:
    """Collect the exit status where the process is our own child, so that no zombie stays."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
