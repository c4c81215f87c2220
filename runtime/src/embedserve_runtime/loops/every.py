"""All loops: importing this compiles them."""

from __future__ import annotations

from embedserve_runtime.loops import means, reading, tries
from embedserve_runtime.loops.compiling import Made, made

MODULES = (means, reading, tries)


def compiled() -> Made:
    return made()
