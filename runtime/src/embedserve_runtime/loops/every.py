"""All loops: importing this compiles them."""

from __future__ import annotations

from embedserve_runtime.loops import means, reading, tries
from embedserve_runtime.loops.compiling import CompiledLoops, count_compiled

MODULES = (means, reading, tries)


def compiled() -> CompiledLoops:
    return count_compiled()
