"""The decorator of all loops. Importing this imports numba."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import llvmlite
import numba
import numpy as np
from numba.core import config
from numba.core.caching import _CacheLocator

from embedserve_runtime.cpu.features import cpu_flags
from embedserve_runtime.loops.targets import folder_of, stamp, target_of

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

FOLDER = folder_of(os.environ)
STAMP = stamp(f"{numba.__version__} {llvmlite.__version__} {np.__version__}")

# The two may be set in the environment, by numba's own names.
config.CPU_NAME = config.CPU_NAME or target_of(platform.machine(), cpu_flags())
config.CPU_FEATURES = config.CPU_FEATURES or ""
config.CACHE_LOCATOR_CLASSES = f"{__name__}.Locator"

_made: list[Any] = []


class CompiledLoops(NamedTuple):
    """compiled, kept: how many loops were compiled by this process, and how many were taken from the folder."""

    compiled: int
    kept: int
    folder: Path
    target: str


class Locator(_CacheLocator):  # type: ignore[misc]  # numba has no types
    """Tells numba where the code of a loop is kept. The folder need not be writable: it is for images, too."""

    def __init__(self, line: int) -> None:
        self._line = line

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Locator:
        return cls(py_func.__code__.co_firstlineno)

    def get_cache_path(self) -> str:
        return str(FOLDER)

    def get_source_stamp(self) -> str:
        return STAMP

    def get_disambiguator(self) -> str:
        return str(self._line)


def loop(*signatures: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function, now, for arguments of these types and no others; without any for loops that call it.

    It runs without the interpreter's lock, checks no bounds, and has the order of operations that is written: nothing
    is added or multiplied together in another way. Source of the signatures' language: numba's types.
    """

    def compiled(function: Callable[P, R]) -> Callable[P, R]:
        made = _kept(function, [*signatures]) if signatures else _jit(None, cache=False)(function)
        if signatures:
            _made.append(made)
        return made  # type: ignore[no-any-return]  # numba has no types

    return compiled


def count_compiled() -> CompiledLoops:
    """Count the loops that were compiled up to now."""
    kept = sum(sum(one.stats.cache_hits.values()) for one in _made)
    total = sum(len(one.signatures) for one in _made)
    return CompiledLoops(total - kept, kept, FOLDER, config.CPU_NAME)


def _kept(function: Callable[..., Any], signatures: list[str]) -> Any:
    try:
        return _jit(signatures, cache=True)(function)
    except OSError as error:
        log.warning(
            "compiled loops cannot be kept, the next process compiles them again; set NUMBA_CACHE_DIR to a folder that "
            "can be written",
            extra={"loop": function.__qualname__, "folder": str(FOLDER), "error": str(error)},
        )
        return _jit(signatures, cache=False)(function)


def _jit(signatures: list[str] | None, *, cache: bool) -> Any:
    return numba.jit(signatures, nopython=True, nogil=True, error_model="numpy", cache=cache)
