"""Served vectors against those of sentence-transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from e2e.cluster.images import REPOSITORY
from e2e.demo.errors import DemoError

LIMIT = 1e-4
"""The project's promise for 32-bit floats."""

TIMEOUT_S = 300

Vectors = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """The comparison's other side, while it is being computed."""

    process: subprocess.Popen[str]

    def vectors(self) -> Vectors:
        output, complaint = self.process.communicate(timeout=TIMEOUT_S)
        if self.process.returncode != 0:
            raise DemoError(f"sentence-transformers failed:\n{complaint[-2000:]}")
        return np.array(json.loads(output))


@contextmanager
def reference_in_background() -> Iterator[Reference]:
    process = subprocess.Popen(
        [sys.executable, "-m", "e2e.demo.reference"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Reference(process)
    finally:
        # Only when the demo failed before it asked.
        if process.poll() is None:
            process.kill()
            process.communicate()


def largest_difference(served: Sequence[Sequence[float]], expected: Vectors) -> float:
    """Return the largest difference, after a check that what is compared are finite numbers of the right shape."""
    got = np.array(served)
    if got.shape != expected.shape:
        raise DemoError(f"vectors of shape {got.shape} were served, {expected.shape} were wanted")
    if not np.isfinite(got).all():
        raise DemoError("the served vectors hold numbers that are not finite")
    return float(np.abs(got - expected).max())


def similarities(vectors: Sequence[Sequence[float]]) -> Vectors:
    """Cosine of every pair."""
    matrix = np.array(vectors)
    matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    product: Vectors = matrix @ matrix.T
    return product
