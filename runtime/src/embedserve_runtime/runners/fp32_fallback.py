"""Recomputes in float32 the results of reduced precision that are not numbers.

float16 ends at 65,504 and 8 bit is scaled by what calibration has seen, so a correct model may overflow in them on a
text that float32 takes. What is not a number in float32 either is the model's own fault, and its request fails.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from embedserve_runtime.forward.arrays import BoolArray, FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import EngineDescription, MemoryStatus
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.runners.protocol import AsyncBatchRunner, InFlightBatch

log = logging.getLogger(__name__)

T = TypeVar("T")

# Of one batch; further ones fail. A model that overflows on more of its inputs is served in the wrong precision.
MAX_INPUTS = 32
MAX_TOKENS = 16_384


class FP32Fallback:
    """The model in float32, opened when it is needed for the first time; one for all engines of a server."""

    def __init__(self, open_runner: Callable[[], Runner]) -> None:
        self._open = open_runner
        self._lock = threading.Lock()
        self._runner: Runner | None = None
        self._is_broken = False

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput | None:
        """Run a batch in float32; None when the model cannot be opened or run, which the log tells."""
        with self._lock:
            if self._is_broken:
                return None
            try:
                if self._runner is None:
                    log.warning("a result is not a number: opening the model in float32 too")
                    self._runner = self._open()
                return self._runner.run(batch, outputs)
            except Exception:  # of any library; the inputs then fail as they would have without this
                self._is_broken = self._runner is None
                log.exception("cannot compute in float32 what is not a number in reduced precision")
                return None


class FallbackRunner:
    """A runner of reduced precision that falls back to float32."""

    def __init__(self, runner: Runner, fallback: FP32Fallback) -> None:
        self.recomputed = 0
        self._counting = threading.Lock()
        self._runner = runner
        self._fallback = fallback

    @property
    def card(self) -> ModelCard:
        return self._runner.card

    @property
    def engine(self) -> EngineDescription:
        return self._runner.engine

    @property
    def memory(self) -> MemoryStatus:
        return self._runner.memory

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        return self.recompute(self._runner.run(batch, outputs), batch, outputs)

    def recompute(self, results: ModelOutput, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        """Return the results with those that are not numbers recomputed, as far as the bounds go."""
        wrong = find_not_finite(results, len(batch.lengths))
        if not wrong.any():
            return results
        indices = limit_indices(np.flatnonzero(wrong).astype(np.int32), batch.lengths)
        recomputed = self._fallback.run(batch.select(indices), outputs) if len(indices) else None
        if recomputed is None:
            return results
        with self._counting:
            self.recomputed += len(indices)
        return replace_results(results, indices.tolist(), recomputed)


class AsyncFallbackRunner(FallbackRunner):
    """A runner with a fallback around an engine that takes the next batch while it runs one.

    runner, engine: the same object.
    """

    def __init__(self, runner: Runner, engine: AsyncBatchRunner, fallback: FP32Fallback) -> None:
        super().__init__(runner, fallback)
        self._async_engine = engine

    @property
    def max_in_flight(self) -> int:
        return self._async_engine.max_in_flight

    def submit(self, batch: PackedBatch, outputs: OutputKind) -> InFlightBatch:
        return _FallbackBatch(self, self._async_engine.submit(batch, outputs), batch, outputs)


class _FallbackBatch:
    """A batch in flight whose results are recomputed where they are not numbers."""

    def __init__(
        self, runner: FallbackRunner, in_flight: InFlightBatch, batch: PackedBatch, outputs: OutputKind
    ) -> None:
        self._runner = runner
        self._in_flight = in_flight
        self._batch = batch
        self._outputs = outputs

    def results(self) -> ModelOutput:
        return self._runner.recompute(self._in_flight.results(), self._batch, self._outputs)


def add_fallback(runner: Runner, fallback: FP32Fallback) -> Runner:
    """Add the fallback to a runner; the result is asynchronous if the runner is."""
    return (
        AsyncFallbackRunner(runner, runner, fallback)
        if isinstance(runner, AsyncBatchRunner)
        else FallbackRunner(runner, fallback)
    )


def find_not_finite(results: ModelOutput, count: int) -> BoolArray:
    """Return which sequences have a value that is not finite, (sequences,)."""
    wrong = np.zeros(count, dtype=np.bool_)
    for rows in (results.dense, results.logits):
        if rows is not None and not np.isfinite(rows).all():
            wrong |= ~np.isfinite(rows).all(axis=1)
    sparse = None if results.sparse is None else [vector.values for vector in results.sparse]
    if results.is_finite is not None:
        wrong |= ~results.is_finite
    by_token = (results.multi_vectors, results.hidden) if results.is_finite is None else ()
    for arrays in (sparse, *by_token):
        if arrays is not None:
            wrong |= np.array([not np.isfinite(array).all() for array in arrays], dtype=np.bool_)
    return wrong


def limit_indices(indices: Int32Array, lengths: Int32Array) -> Int32Array:
    """Return the first of the indices, at most `MAX_INPUTS` with `MAX_TOKENS` in all."""
    first = indices[:MAX_INPUTS]
    return first[np.cumsum(lengths[first]) <= MAX_TOKENS]


def replace_results(results: ModelOutput, indices: Sequence[int], by: ModelOutput) -> ModelOutput:
    """Return the results with those of some sequences replaced."""
    return ModelOutput(
        _replace_rows(results.dense, indices, by.dense),
        _replace_rows(results.logits, indices, by.logits),
        _replace_items(results.sparse, indices, by.sparse),
        _replace_items(results.multi_vectors, indices, by.multi_vectors),
        _replace_items(results.hidden, indices, by.hidden),
        results.padding + by.padding,
    )


def _replace_rows(
    rows: FloatArray | None, indices: Sequence[int], by: FloatArray | None
) -> FloatArray | None:
    if rows is None or by is None:
        return rows
    copied = rows.copy()
    copied[list(indices)] = by
    return copied


def _replace_items(
    values: Sequence[T] | None, indices: Sequence[int], by: Sequence[T] | None
) -> Sequence[T] | None:
    if values is None or by is None:
        return values
    copied = [*values]
    for index, value in zip(indices, by, strict=True):
        copied[index] = value
    return copied
