"""Signals that end a command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from embedserve_runtime.commands.output import write_error

INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code of a command that Ctrl-C ended."""


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


@contextmanager
def exit_on_sigint() -> Iterator[None]:
    """End the process at once on Ctrl-C while libraries are imported: nothing was begun, and an exception inside an
    import may be caught or replaced by the library."""

    def end(*_: object) -> None:
        write_error("interrupted")
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
