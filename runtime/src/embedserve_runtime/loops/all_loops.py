"""Imports, and so compiles, every loop."""

from __future__ import annotations

from embedserve_runtime.loops import mean_pooling, tokenization, tries
from embedserve_runtime.loops.jit import CompiledLoops, count_compiled

MODULES = (mean_pooling, tokenization, tries)


def compile_all() -> CompiledLoops:
    """Count the loops, all of which were compiled when this module was imported."""
    return count_compiled()
