"""Bounded waiting for a condition; nothing in this package sleeps for any other reason."""

from __future__ import annotations

import time
from collections.abc import Callable

from e2e.cluster.errors import ClusterError


def wait_until(
    what: str,
    met: Callable[[], bool],
    *,
    timeout_s: float,
    every_s: float = 0.2,
    why_not: Callable[[], str] = lambda: "",
) -> None:
    """Poll ``met``; after ``timeout_s`` raise with ``why_not()``, which is asked only then.

    ``met`` may raise ClusterError itself to end the wait early, for example when a process has died.
    """
    deadline = time.monotonic() + timeout_s
    while not met():
        if time.monotonic() >= deadline:
            reason = why_not()
            raise ClusterError(
                f"{what}: did not happen within {timeout_s:.0f} s" + (f"\n{reason}" if reason else "")
            )
        time.sleep(every_s)
