"""Wall time and CPU time of something, which benchmarks compare: on a busy machine the second is the one to trust."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Taken(NamedTuple):
    """Seconds."""

    wall: float
    cpu: float


def taken(work: Callable[[], object]) -> Taken:
    """By this process, with all its threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)


def median_of(found: Sequence[Taken]) -> Taken:
    """Of each by itself."""
    return Taken(statistics.median(one.wall for one in found), statistics.median(one.cpu for one in found))
