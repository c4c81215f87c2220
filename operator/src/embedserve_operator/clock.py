"""Tells the time, by two clocks that belong together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The moment from which Unix time counts."""


def read_date() -> datetime:
    """Return the date in UTC by the machine's clock."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """Tells the date, which others read, and seconds, by which durations are measured."""

    now: Callable[[], datetime] = read_date
    """Returns the date in UTC. It may jump when somebody sets the machine's clock."""
    monotonic: Callable[[], float] = time.monotonic
    """Returns seconds since some moment. They never jump."""
