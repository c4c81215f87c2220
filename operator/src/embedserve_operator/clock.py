"""Tells the time, by two clocks that belong together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _read_date() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """Tells the date, which others read, and seconds, by which durations are measured."""

    now: Callable[[], datetime] = _read_date
    """Returns the date in UTC. It may jump when somebody sets the machine's clock."""
    monotonic: Callable[[], float] = time.monotonic
    """Returns seconds since some moment. They never jump."""
