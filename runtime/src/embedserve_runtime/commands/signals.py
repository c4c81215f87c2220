"""Signals of commands that run as the first process of a container."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Exit on SIGTERM, which does not end the first process of a container otherwise: neither while it fetches or
    converts, nor while a server loads its libraries. A server that runs has a handler of its own.

    A fetch that ends so leaves its staging folder to the next one at once.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
