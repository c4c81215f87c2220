"""Single-pass loops that numba compiles; docs/loops.md has the rules.

    targets    for which processor, and where compiled code is kept
    compiling  the decorator `loop`
    every      all loops: importing it compiles them
    __main__   what an image runs at its build

Only models that are tables need them: everything else of the runtime works without numba, which takes a second and
100 MB, so modules of loops are imported inside the functions that use them.
"""

from __future__ import annotations

import logging
import time
from importlib import import_module

log = logging.getLogger(__name__)


def ready_loops() -> None:
    """Compile all loops, or take them from where an earlier process kept them, before they are needed."""
    begun = time.perf_counter()
    made = import_module("embedserve_runtime.loops.every").compiled()
    log.info(
        "loops ready",
        extra={
            "seconds": round(time.perf_counter() - begun, 3),
            "compiled": made.compiled,
            "kept": made.kept,
            "folder": str(made.folder),
            "target": made.target,
        },
    )
