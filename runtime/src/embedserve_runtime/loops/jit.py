"""Defines the decorator of all loops. Importing this module imports numba."""

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
from embedserve_runtime.loops.targets import cache_folder, choose_target, source_stamp

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

FOLDER = cache_folder(os.environ)
STAMP = source_stamp(f"{numba.__version__} {llvmlite.__version__} {np.__version__}")

# The two may be set in the environment, by numba's own names.
config.CPU_NAME = config.CPU_NAME or choose_target(platform.machine(), cpu_flags())
config.CPU_FEATURES = config.CPU_FEATURES or ""
config.CACHE_LOCATOR_CLASSES = f"{__name__}.Locator"

_compiled: list[Any] = []


class CompiledLoops(NamedTuple):
    """The loops of this process.

    compiled: how many it has compiled. from_cache: how many it has loaded from `folder`. target: LLVM's name of the
    processor that they are compiled for.
    """

    compiled: int
    from_cache: int
    folder: Path
    target: str


class Locator(_CacheLocator):  # type: ignore[misc]  # numba has no types
    """Tells numba where the code of a loop is cached. The folder need not be writable, as in images."""

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
    """Compile a function at once for arguments of these types, and no others; without any, for the loops that call it.

    The function runs without the interpreter's lock, checks no bounds, and keeps the written order of operations. Types
    are written in numba's notation.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not signatures:
            return _jit(None, cache=False)(function)  # type: ignore[no-any-return]  # numba has no types
        compiled = _compile_cached(function, [*signatures])
        _compiled.append(compiled)
        return compiled  # type: ignore[no-any-return]

    return decorate


def count_compiled() -> CompiledLoops:
    """Count the loops that this process has compiled or loaded so far."""
    from_cache = sum(sum(function.stats.cache_hits.values()) for function in _compiled)
    total = sum(len(function.signatures) for function in _compiled)
    return CompiledLoops(total - from_cache, from_cache, FOLDER, config.CPU_NAME)


def _compile_cached(function: Callable[..., Any], signatures: list[str]) -> Any:
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
