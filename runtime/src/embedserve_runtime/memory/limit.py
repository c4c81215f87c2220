"""Reads how much memory the process's container may take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
MIN_UNLIMITED = 2**60
"""Version 1 writes the largest number of whole pages where there is no limit."""


def read_memory_limit(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> int | None:
    """Return the limit in bytes: the least of the process's cgroup and those around it; None where none has one.

    Reads cgroup version 2 and 1. In a container the own cgroup is the root of the tree that it sees.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    files = [*_list_files(root, "memory.max", _find_path(lines, ""))]
    files += _list_files(root / "memory", "memory.limit_in_bytes", _find_path(lines, "memory"))
    limits = [limit for limit in map(_read, files) if limit is not None]
    return min(limits, default=None)


def _find_path(lines: list[str], controller: str) -> str:
    """Find the path of the process's cgroup in lines of /proc/PID/cgroup, `number:controllers:path`."""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _list_files(root: Path, name: str, path: str) -> Iterator[Path]:
    folder = root / path.lstrip("/")
    yield folder / name
    while folder != root and root in folder.parents:
        folder = folder.parent
        yield folder / name


def _read(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    if not text.isdecimal() or int(text) >= MIN_UNLIMITED:
        return None
    return int(text)
