"""Runners that compute rows from token ids, and one that holds its batches until a test lets them go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import EngineDescription, MemoryStatus
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.heads.sparse import to_sparse_vector
from embedserve_runtime.model.card import ModelCard
from tests.support.tiny_models import DIMENSIONS, VOCABULARY, build_card

Run = Callable[[PackedBatch], FloatArray]


def build_mean_run(dimensions: int = DIMENSIONS) -> Run:
    """Build a run whose row is the mean of fixed random rows, one a token id: any mix-up of inputs shows."""
    table = np.random.default_rng(7).standard_normal((len(VOCABULARY), dimensions), dtype=np.float32)

    def run(batch: PackedBatch) -> FloatArray:
        sums: FloatArray = np.add.reduceat(table[batch.token_ids], batch.cu_seqlens[:-1], axis=0)
        return np.asarray(sums / batch.lengths[:, None], dtype=np.float32)

    return run


TINY = EngineDescription("tiny", "a test", "float32")


@dataclass(frozen=True)
class TinyRunner:
    """A runner around what makes rows: dense vectors, logits, or sparse vectors of what is above 0 in them.

    Its hidden state of a token is what the token alone would give.
    """

    rows: Run
    card: ModelCard = field(default_factory=build_card)
    engine: EngineDescription = TINY
    memory: MemoryStatus = field(default_factory=MemoryStatus)
    recomputed: int = 0

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        alone = PackedBatch(batch.token_ids, np.arange(batch.tokens + 1, dtype=np.int32))
        rows = self.rows(batch)
        return ModelOutput(
            dense=rows if OutputKind.DENSE in outputs else None,
            logits=rows if OutputKind.LOGITS in outputs else None,
            sparse=[*map(to_sparse_vector, rows)] if OutputKind.SPARSE in outputs else None,
            hidden=np.split(self.rows(alone), batch.cu_seqlens[1:-1])
            if OutputKind.HIDDEN in outputs
            else None,
        )


@dataclass(frozen=True)
class _SubmittedBatch:
    runner: TinyRunner
    batch: PackedBatch
    outputs: OutputKind

    def results(self) -> ModelOutput:
        return self.runner.run(self.batch, self.outputs)


@dataclass(frozen=True)
class OverlappingRunner(TinyRunner):
    """An engine that takes batches before the results of earlier ones are read; `rows` is where it works.

    taken: a permit for each batch that has been submitted. refused: a token id that fails the submission.
    """

    taken: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    max_in_flight: int = 2
    refused: int | None = None

    def submit(self, batch: PackedBatch, outputs: OutputKind) -> _SubmittedBatch:
        if self.refused is not None and self.refused in batch.token_ids:
            raise EngineFailure("cannot take this")
        self.taken.release()
        return _SubmittedBatch(self, batch, outputs)

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        if self.refused is not None and self.refused in batch.token_ids:
            raise EngineFailure("cannot take this")
        return super().run(batch, outputs)


class GatedRun:
    """A run that a test can hold inside a batch, and that keeps the batches that have come in."""

    def __init__(self, run: Run | None = None) -> None:
        self._run = run or build_mean_run()
        self._open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.batches: list[PackedBatch] = []

    def __call__(self, batch: PackedBatch) -> FloatArray:
        self.batches.append(batch)
        self.entered.release()
        self._open.wait()
        return self._run(batch)

    def release(self) -> None:
        """Hold nothing from now on."""
        self._open.set()
