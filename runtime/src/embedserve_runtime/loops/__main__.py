"""Compile all loops for every kind of processor that this image may meet, into NUMBA_CACHE_DIR.

NUMBA_CACHE_DIR=/opt/embedserve/loops python -m embedserve_runtime.loops
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

from embedserve_runtime.loops.targets import targets_of

for target in targets_of(platform.machine()):
    # A process each, since numba has one target.
    subprocess.run(
        [sys.executable, "-c", "import embedserve_runtime.loops.every as every; print(every.compiled())"],
        env={**os.environ, "NUMBA_CPU_NAME": target},
        check=True,
    )
