"""`embedserve serve`: serves a model until it is stopped."""

from __future__ import annotations

import gc

from embedserve_runtime.config import RuntimeConfig


def run(config: RuntimeConfig) -> int:
    """Serve the model until a signal comes; return the exit code."""
    # Objects that are made during the start stay alive. Collecting them again and again takes a tenth of the start, so
    # collection is off until the model is loaded, the server's own imports included.
    gc.disable()
    from embedserve_runtime.process import launch

    return launch.run(config)
