"""A small folder of the census, what our runtime makes of its texts, and what the authors' loader makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.runners.base import Runner
from tests.runtime.heads.head_runner import greatest

Results = Sequence[FloatArray]
"""Vectors, scores or weights of the fixed texts of a kind of task."""


@dataclass(frozen=True, slots=True)
class Built:
    """folder: what is served. task: what its authors made it for. loader: whose results `expected` returns, in the
    environment of the tests; empty where nothing is compared. results: what a runner makes of the texts. expected: what
    the loader makes of them, for a runner of the folder. loader_folder: the same model as transformers lays it out,
    which loaders read without code of the repository; None for `folder`. is_table: whether it has no layers, and so no
    engine."""

    folder: Path
    task: Task
    loader: str = ""
    results: Callable[[Runner], Results] | None = None
    expected: Callable[[Runner], Results] | None = None
    loader_folder: Path | None = None
    is_table: bool = False

    def measure(self, runner: Runner) -> float:
        """Return the greatest difference between the runner's results and the loader's."""
        assert self.results is not None, "what is served is compared with something"
        assert self.expected is not None, "what is served is compared with something"
        return greatest_difference(self.results(runner), self.expected(runner))


def greatest_difference(ours: Results, theirs: Results) -> float:
    """Compare arrays of the same shapes in the same order. Fails if there are others."""
    assert [one.shape for one in ours] == [one.shape for one in theirs]
    return max(greatest(one - other) for one, other in zip(ours, theirs, strict=True))
