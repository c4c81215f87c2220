"""Reads how many CPUs this process may really use.

`os.cpu_count()` and the affinity mask report the host's cores inside a container; the limit lies in the cgroup.
Threads beyond it do not help: the kernel throttles all of them.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
# The CPU controller's folder under version 1, alone or mounted jointly.
V1_FOLDERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


def read_cpu_limit(root: Path = CGROUP_ROOT) -> float | None:
    """Read the quota in CPUs (0.5 is half a core) from cgroup version 2, then 1; None when there is no limit."""
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


def count_usable_cpus(root: Path = CGROUP_ROOT) -> int:
    """Count the whole CPUs to size thread pools by: the quota rounded up, at most the affinity mask, at least 1."""
    allowed = len(list_allowed_cpus())
    limit = read_cpu_limit(root)
    return max(1, min(allowed, math.ceil(limit))) if limit is not None else allowed


def list_allowed_cpus() -> frozenset[int]:
    """List the CPUs of the affinity mask (cpuset)."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
