"""Tells how far long work is to whoever displays it: progress bars on a terminal, nobody elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

Unit = Literal["bytes", "parameters", "products", "tokens", "seconds"]


@dataclass(frozen=True, slots=True)
class WorkState:
    """The progress of some work.

    total: None where it is not known. per_second: the rate, in units. seconds_remaining: None where the rate or the
    total is not known.
    """

    description: str
    done: float
    total: float | None
    unit: Unit
    per_second: float
    seconds_remaining: float | None


ReadState = Callable[[], WorkState]
Display = Callable[[ReadState], AbstractContextManager[None]]
"""Displays work as long as the context lasts. The state is read from another thread, as often as it is drawn."""


def _display_nowhere(_: ReadState) -> AbstractContextManager[None]:
    return nullcontext()


_display: Display = _display_nowhere


@contextmanager
def display_work_by(display: Display) -> Iterator[None]:
    """Display all work of this process by `display` within the context."""
    global _display  # noqa: PLW0603  # one terminal, as with the handlers of logging
    before, _display = _display, display
    try:
        yield
    finally:
        _display = before


def display_work(read: ReadState) -> AbstractContextManager[None]:
    """Display work whose state is counted elsewhere, within the context."""
    return _display(read)


class WorkCounter:
    """Counts what is done of some work. Safe to use from any thread."""

    def __init__(
        self,
        description: str,
        total: float | None,
        unit: Unit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._description = description
        self._total = total
        self._unit: Unit = unit
        self._clock = clock
        self._began = clock()
        self._done = 0.0
        self._lock = threading.Lock()

    def advance(self, count: float) -> None:
        """Count more that is done, in units."""
        with self._lock:
            self._done += count

    def get_state(self) -> WorkState:
        with self._lock:
            done = self._done
        elapsed = self._clock() - self._began
        rate = done / elapsed if elapsed > 0 else 0.0
        has_end = rate > 0 and self._total is not None
        remaining = max(0.0, (self._total or 0.0) - done) / rate if has_end else None
        return WorkState(self._description, done, self._total, self._unit, rate, remaining)


@contextmanager
def track_time(
    description: str, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Display work that takes the given number of seconds."""
    began = clock()

    def read() -> WorkState:
        elapsed = min(seconds, clock() - began)
        return WorkState(description, elapsed, seconds, "seconds", 1.0, seconds - elapsed)

    with display_work(read):
        yield


@contextmanager
def track_work(
    description: str, total: float | None = None, unit: Unit = "seconds"
) -> Iterator[Callable[[float], None]]:
    """Display work that is counted by calls of the function that is yielded.

    total: None for work of which nothing can be counted.
    """
    counter = WorkCounter(description, total, unit)
    with display_work(counter.get_state):
        yield counter.advance
