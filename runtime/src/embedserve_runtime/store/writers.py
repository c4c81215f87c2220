"""Leases on staging folders: which process writes into a folder, and whether it is still alive.

Locks do nothing on some network file systems, so a writer keeps a lease file in its folder and renews its modification
time. Processes that share a process table look the writer up in it; others (on another node, in another container) take
a writer for dead whose lease has not been renewed for long.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

LEASE_FILE = "writer.json"
RENEW_S = 2.0
SILENT_AFTER_S = 30.0
"""Seconds without renewal after which a writer outside our process table is taken for dead."""


class Writer(BaseModel):
    """The identity of a process: the machine's boot, PID namespace, PID and the start time of that PID.

    released: the process has ended by itself and left the folder to the next writer.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    boot: str
    namespace: str
    pid: int
    started: str
    released: bool = False

    @classmethod
    def current(cls) -> Writer:
        pid = os.getpid()
        return cls(
            boot=_read_boot_id(),
            namespace=_read_pid_namespace(),
            pid=pid,
            started=_read_process_start(pid) or "",
        )

    def is_dead(self, silent_s: float) -> bool:
        """Return whether the writer is dead. silent_s: seconds since its lease was renewed, by the file server's
        clock."""
        if self.released:
            return True
        if self.boot and (self.boot, self.namespace) == (_read_boot_id(), _read_pid_namespace()):
            return _read_process_start(self.pid) != self.started
        return silent_s > SILENT_AFTER_S


def read_lease(folder: Path) -> tuple[Writer | None, float]:
    """Read the writer of a staging folder and when it renewed its lease (seconds since 1970, of the file server).

    The writer is None where no lease can be read. The file is opened, not only looked at, since that makes network file
    systems ask their server.
    """
    try:
        with (folder / LEASE_FILE).open("rb") as lease:
            renewed = os.fstat(lease.fileno()).st_mtime
            return Writer.model_validate_json(lease.read()), renewed
    except (OSError, ValueError):
        return None, folder.stat().st_mtime


class LeaseRenewer:
    """Renews the lease of a folder until stopped. `lost` is set once another process has taken the folder over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stopped = threading.Event()
        self.lost = threading.Event()
        (folder / LEASE_FILE).write_text(Writer.current().model_dump_json(), encoding="utf-8")
        self._thread = threading.Thread(target=self._renew, name="store-heartbeat", daemon=True)
        self._thread.start()

    def stop(self, *, release: bool) -> None:
        """Stop renewing. release: leave the folder to the next writer at once."""
        self._stopped.set()
        self._thread.join()
        if release and not self.lost.is_set():
            left = Writer.current().model_copy(update={"released": True})
            (self._folder / LEASE_FILE).write_text(left.model_dump_json(), encoding="utf-8")

    def _renew(self) -> None:
        while not self._stopped.wait(RENEW_S):
            try:
                os.utime(self._folder / LEASE_FILE)
            except FileNotFoundError:
                self.lost.set()
                return
            except OSError:
                continue  # a volume in trouble: the writer's own work will say so


@cache
def _read_boot_id() -> str:
    return _read_text("/proc/sys/kernel/random/boot_id")


@cache
def _read_pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _read_process_start(pid: int) -> str | None:
    """Read the time at which a PID was given, in ticks since boot; None where no such process runs."""
    status = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    # Counted from the field after the name: state is the first, the start time the twentieth. Z: ended, not yet reaped.
    return status[19] if len(status) > 19 and status[0] != "Z" else None


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
