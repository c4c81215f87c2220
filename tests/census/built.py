"""A small folder of the census, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.runners.base import Runner

Measure = Callable[[Runner], float]


@dataclass(frozen=True, slots=True)
class Built:
    """folder: what is served. task: what its authors made it for. loader: whose vectors, scores or weights `measure`
    gives the greatest difference from; None where nothing is compared.
    is_table: whether it has no layers, and so no engine."""

    folder: Path
    task: Task
    loader: str = ""
    measure: Measure | None = None
    is_table: bool = False
