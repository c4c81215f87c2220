"""How many CPUs this process may really use.

`os.cpu_count()` and the affinity mask report the host's cores inside a container; the limit lies in the cgroup.
Threads beyond it do not help: the kernel throttles all of them.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
NODES_ROOT = Path("/sys/devices/system/node")
# The CPU controller's folder under version 1, alone or mounted jointly.
V1_FOLDERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


def cpu_limit(root: Path = CGROUP_ROOT) -> float | None:
    """The quota in CPUs (0.5 is half a core), None when there is no limit. Reads cgroup version 2, then 1."""
    maximum = _read(root / "cpu.max")
    if maximum is not None:
        quota, _, period = maximum.partition(" ")
        return None if quota == "max" else int(quota) / int(period)
    for folder in V1_FOLDERS:
        v1_quota = _read(root / folder / "cpu.cfs_quota_us")
        v1_period = _read(root / folder / "cpu.cfs_period_us")
        if v1_quota is not None and v1_period is not None:
            return int(v1_quota) / int(v1_period) if int(v1_quota) > 0 else None
    return None


def usable_cpus(root: Path = CGROUP_ROOT) -> int:
    """Whole CPUs to size thread pools by: the quota rounded up, at most the affinity mask, at least 1."""
    allowed = len(_allowed())
    limit = cpu_limit(root)
    return max(1, min(allowed, math.ceil(limit))) if limit is not None else allowed


def memory_nodes(root: Path = NODES_ROOT) -> list[int]:
    """Numbers of the NUMA nodes that the CPUs of the affinity mask (cpuset) belong to; empty where none are told."""
    allowed = _allowed()
    lists = {folder: _read(folder / "cpulist") for folder in root.glob("node[0-9]*")}
    return sorted(
        int(folder.name.removeprefix("node"))
        for folder, cpus in lists.items()
        if cpus is not None and allowed & cpus_in(cpus)
    )


def cpus_in(text: str) -> frozenset[int]:
    """CPUs of the kernel's notation: `0-3,8`."""
    ranges = (part.partition("-") for part in text.split(",") if part)
    return frozenset(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1))


def _allowed() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
