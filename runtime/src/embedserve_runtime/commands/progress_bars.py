"""Shows how far long work is as bars on a terminal, with its rate and the time that remains."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from embedserve_runtime.commands.tables import is_drawing_terminal
from embedserve_runtime.progress import ReadState, Unit, WorkState, display_work_by

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_SCALES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
REDRAWS_PER_SECOND: Final = 8
SHOWN_AFTER_SECONDS: Final = 0.3
"""Work that is done sooner gets no bar."""
BAR_WIDTH: Final = 24


def can_show_progress_bars(log_format: str) -> bool:
    """Return whether standard error is a terminal that can draw, and logs are not JSON."""
    return log_format != "json" and is_drawing_terminal(sys.stderr)


def show_progress_bars(log_format: str) -> AbstractContextManager[None]:
    """Return a context in which bars are shown on standard error, where that can show them."""
    return display_work_by(_Bars().show) if can_show_progress_bars(log_format) else nullcontext()


class _Bars:
    """The bars of all work that goes on at the same time, below the lines of the log. They vanish with the work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[ReadState] = set()
        self._timer: threading.Timer | None = None
        self._live: Live | None = None

    @contextmanager
    def show(self, read: ReadState) -> Iterator[None]:
        with self._lock:
            self._running.add(read)
            if self._timer is None:
                self._timer = threading.Timer(SHOWN_AFTER_SECONDS, self._start)
                self._timer.daemon = True
                self._timer.start()
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(read)
                if not self._running:
                    self._stop()

    def _start(self) -> None:
        """Begin to draw, on the timer's thread. What is done sooner writes nothing at all."""
        # Imported here: only terminals need it, and only while something takes long.
        from rich.console import Console
        from rich.live import Live

        with self._lock:
            if self._timer is not threading.current_thread():
                return  # the work has ended
            self._live = Live(
                console=Console(file=sys.stderr),
                get_renderable=self._render,
                refresh_per_second=REDRAWS_PER_SECOND,
                transient=True,
                redirect_stdout=False,
            )
            self._live.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _render(self) -> Table:
        return build_bars([read() for read in list(self._running)])


def build_bars(states: Iterable[WorkState]) -> Table:
    """Build a row with a bar for each work; the bar pulses where no total is known."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(max_width=BAR_WIDTH)  # shorter where the terminal is narrow
    table.add_column(no_wrap=True, overflow="ellipsis")
    for state in states:
        bar = ProgressBar(total=state.total, completed=state.done)
        table.add_row(Text(state.description), bar, Text(format_amount(state)))
    return table


def format_amount(state: WorkState) -> str:
    """Format how much is done, how fast it goes and how long it takes yet; empty where nothing is counted."""
    if not state.total:
        return ""
    scale, _ = _choose_scale(state.total)
    parts = [f"{state.done / scale:{_choose_precision(scale)}}/{_format_count(state.total, state.unit)}"]
    if state.unit != "seconds" and state.per_second > 0:
        parts.append(f"{_format_count(state.per_second, state.unit)}/s")
    if state.seconds_remaining is not None:
        parts.append(f"{timedelta(seconds=round(state.seconds_remaining))} left")
    return ", ".join(parts)


def _format_count(count: float, unit: Unit) -> str:
    """Format a number with its unit: `91.6 MB`, `4.3k tokens`, `12 s`."""
    scale, prefix = _choose_scale(count)
    number = f"{count / scale:{_choose_precision(scale)}}"
    return (
        f"{number} {prefix}B" if unit == "bytes" else f"{number}{prefix} {'s' if unit == 'seconds' else unit}"
    )


def _choose_scale(count: float) -> tuple[float, str]:
    return next(((scale, prefix) for scale, prefix in _SCALES if count >= scale), (1.0, ""))


def _choose_precision(scale: float) -> str:
    return ".1f" if scale > 1 else ".0f"
