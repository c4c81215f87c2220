"""Settings of the Python interpreter for a process that answers requests."""

from __future__ import annotations

import gc
import sys

# A thread that computes holds the interpreter this long at most when another one wants it. The default of 5
# ms would let the engine wait for the event loop about as long as a small batch takes.
SWITCH_SECONDS = 0.0005
# Objects of a request are freed when it ends, without the collector: it looks for cycles, of which there are few, and
# each look at all objects stops the process. The first number counts objects more than were freed.
COLLECTIONS = (20_000, 20, 50)


def tune_interpreter() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*COLLECTIONS)
