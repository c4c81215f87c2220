"""Who writes into a staging folder, and whether that process still lives: without locks, which do nothing on some
network file systems.

A writer leaves a card in its folder and renews the card's time. Where two processes see the same process table the
table answers; elsewhere (another node, another container) a card that has not been renewed for long does.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

CARD = "writer.json"
RENEW_S = 2.0
SILENT_AFTER_S = 30.0
"""A writer of another process table that has been silent for so long is taken for dead."""


class Writer(BaseModel):
    """Who a process is: boot of the machine, PID namespace, PID and the time at which that PID was given.

    released: it has ended by itself and left the folder to the next one.
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
        """silent_s: seconds since the card was renewed, by the clock of the file server."""
        if self.released:
            return True
        if self.boot and (self.boot, self.namespace) == (_read_boot_id(), _read_pid_namespace()):
            return _read_process_start(self.pid) != self.started
        return silent_s > SILENT_AFTER_S


def read_card(folder: Path) -> tuple[Writer | None, float]:
    """The writer of a staging folder and when it was last heard of; no writer where there is no card that can be read.

    The card is opened, and not only looked at: that is what makes network file systems ask their server.
    """
    try:
        with (folder / CARD).open("rb") as card:
            heard = os.fstat(card.fileno()).st_mtime
            return Writer.model_validate_json(card.read()), heard
    except (OSError, ValueError):
        return None, folder.stat().st_mtime


class Heartbeat:
    """Renews a card until it is stopped. `lost` is set once the folder is gone: another process took it over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stopped = threading.Event()
        self.lost = threading.Event()
        (folder / CARD).write_text(Writer.current().model_dump_json(), encoding="utf-8")
        self._thread = threading.Thread(target=self._renew, name="store-heartbeat", daemon=True)
        self._thread.start()

    def stop(self, *, release: bool) -> None:
        """release: leave the folder to the next writer at once."""
        self._stopped.set()
        self._thread.join()
        if release and not self.lost.is_set():
            left = Writer.current().model_copy(update={"released": True})
            (self._folder / CARD).write_text(left.model_dump_json(), encoding="utf-8")

    def _renew(self) -> None:
        while not self._stopped.wait(RENEW_S):
            try:
                os.utime(self._folder / CARD)
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
    """The time at which a PID was given, in ticks since boot; None where no such process runs."""
    status = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    # Counted from the field after the name: state is the first, the start time the twentieth. Z: ended, not yet reaped.
    return status[19] if len(status) > 19 and status[0] != "Z" else None


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
