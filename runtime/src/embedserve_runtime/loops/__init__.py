"""Holds single-pass loops that numba compiles.

docs/loops.md has the rules.

    targets       the processors that code is compiled for, and the folder where it is cached
    jit           the decorator `loop`
    tries         double-array tries over bytes
    subwords      WordPiece and Unigram
    tokenization  texts to token ids
    mean_pooling  the mean of a text's rows
    all_loops     imports all of them
    __main__      compiles all of them when an image is built

Only static models need these loops. Everything else in the runtime works without numba, which takes a second and
100 MB to import, so modules of loops are imported inside the functions that use them.
"""

from __future__ import annotations

import logging
import time
from importlib import import_module

log = logging.getLogger(__name__)


def compile_loops() -> None:
    """Compile all loops, or load them from the cache of an earlier process, before they are needed."""
    begun = time.perf_counter()
    loops = import_module("embedserve_runtime.loops.all_loops").compile_all()
    log.info(
        "loops ready",
        extra={
            "seconds": round(time.perf_counter() - begun, 3),
            "compiled": loops.compiled,
            "kept": loops.from_cache,
            "folder": str(loops.folder),
            "target": loops.target,
        },
    )
