"""Priorities of threads: their nice values, which Linux keeps for each thread.

A value that was raised cannot be lowered again without a privilege that a container has not. The kernel weighs the
threads of one container against each other by it, and no thread against those of other containers.
"""

from __future__ import annotations

import contextlib
import os
import sys

# By so much a thread has a tenth of the time of one that has not given way (`sched_prio_to_weight` of the kernel). With
# 5, a third, the p95 of a client that sends little was a fifth longer (docs/engineering/scheduling.md).
GIVE_WAY_BY = 10
MAX_NICE = 19


def read_nice() -> int:
    """Return the nice value of the calling thread; 0 where threads have none of their own."""
    return os.getpriority(os.PRIO_PROCESS, 0) if sys.platform == "linux" else 0


def raise_nice(value: int) -> None:
    """Raise the nice value of the calling thread to this one; a higher one stays. Nothing happens where it must not."""
    if sys.platform == "linux" and read_nice() < value:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, min(value, MAX_NICE))


def give_way() -> None:
    """Have the other threads of the process go before the calling one, from now on."""
    raise_nice(read_nice() + GIVE_WAY_BY)
