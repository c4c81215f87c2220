"""Wall time and CPU time of something, which benchmarks compare: on a busy machine the second is the one to trust."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Timing(NamedTuple):
    """The seconds that some work took, by the clock and of CPU time."""

    wall: float
    cpu: float


def measure_time(work: Callable[[], object]) -> Timing:
    """Measure the time that this process takes for the work, with all its threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu)


def compute_median(timings: Sequence[Timing]) -> Timing:
    """Return the median of each of the two."""
    return Timing(
        statistics.median(timing.wall for timing in timings),
        statistics.median(timing.cpu for timing in timings),
    )
