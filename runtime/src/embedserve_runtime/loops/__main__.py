"""Compiles all loops for every kind of processor that this image may run on, into NUMBA_CACHE_DIR.

NUMBA_CACHE_DIR=/opt/embedserve/loops python -m embedserve_runtime.loops
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

from embedserve_runtime.loops.targets import list_targets

for target in list_targets(platform.machine()):
    # One process for each, since numba has one target a process.
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from embedserve_runtime.loops.all_loops import compile_all; print(compile_all())",
        ],
        env={**os.environ, "NUMBA_CPU_NAME": target},
        check=True,
    )
