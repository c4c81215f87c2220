"""Results of reduced precision that are no numbers, computed once more in float32.

float16 ends at 65,504 and 8 bit is scaled by what calibration has seen, so a sound model may overflow in them on a
text that float32 takes. What is no number in float32 either is the model's own fault, and its request fails.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from embedserve_runtime.engines.base import BoolArray, EngineFacts, FloatArray, Int32Array, PackedBatch
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.results import Output, Results
from embedserve_runtime.runner import Runner
from embedserve_runtime.running import Overlaps, UnderWay

log = logging.getLogger(__name__)

T = TypeVar("T")

# Of one batch; further ones fail. A model that overflows on more of its inputs is served in the wrong precision.
MOST_INPUTS = 32
MOST_TOKENS = 16_384


class Exact:
    """The model in float32, opened when it is needed for the first time; one for all engines of a server."""

    def __init__(self, open_runner: Callable[[], Runner]) -> None:
        self._open = open_runner
        self._turn = threading.Lock()
        self._runner: Runner | None = None
        self._is_broken = False

    def run(self, batch: PackedBatch, wanted: Output) -> Results | None:
        """None when the model cannot be opened or run, which the log tells."""
        with self._turn:
            if self._is_broken:
                return None
            try:
                if self._runner is None:
                    log.warning("a result is no number: opening the model in float32 too")
                    self._runner = self._open()
                return self._runner.run(batch, wanted)
            except Exception:  # of any library; the inputs then fail as they would have without this
                self._is_broken = self._runner is None
                log.exception("cannot compute in float32 what is no number in reduced precision")
                return None


class Recomputing:
    """A runner of reduced precision with the exact one behind it."""

    def __init__(self, runner: Runner, exact: Exact) -> None:
        self.recomputed = 0
        self._runner = runner
        self._exact = exact

    @property
    def card(self) -> ModelCard:
        return self._runner.card

    @property
    def engine(self) -> EngineFacts:
        return self._runner.engine

    @property
    def out_of_memory(self) -> int:
        return self._runner.out_of_memory

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        return self.mended(self._runner.run(batch, wanted), batch, wanted)

    def mended(self, results: Results, batch: PackedBatch, wanted: Output) -> Results:
        """With what is no number computed again, as far as the bounds go."""
        wrong = not_finite(results, len(batch.lengths))
        if not wrong.any():
            return results
        places = bounded(np.flatnonzero(wrong).astype(np.int32), batch.lengths)
        again = self._exact.run(batch.select(places), wanted) if len(places) else None
        if again is None:
            return results
        self.recomputed += len(places)
        return replaced(results, places.tolist(), again)


class OverlappingRecomputing(Recomputing):
    """Around an engine that takes the next batch while it runs one."""

    def __init__(self, runner: Runner, overlaps: Overlaps, exact: Exact) -> None:
        """runner, overlaps: the same."""
        super().__init__(runner, exact)
        self._overlaps = overlaps

    @property
    def most_under_way(self) -> int:
        return self._overlaps.most_under_way

    def submit(self, batch: PackedBatch, wanted: Output) -> UnderWay:
        return _Mending(self, self._overlaps.submit(batch, wanted), batch, wanted)


class _Mending:
    def __init__(self, to: Recomputing, under_way: UnderWay, batch: PackedBatch, wanted: Output) -> None:
        self._to = to
        self._under_way = under_way
        self._batch = batch
        self._wanted = wanted

    def results(self) -> Results:
        return self._to.mended(self._under_way.results(), self._batch, self._wanted)


def recomputing(runner: Runner, exact: Exact) -> Runner:
    """Overlaps where the runner does."""
    return (
        OverlappingRecomputing(runner, runner, exact)
        if isinstance(runner, Overlaps)
        else Recomputing(runner, exact)
    )


def not_finite(results: Results, count: int) -> BoolArray:
    """(sequences,), which of them have a value that is no finite number."""
    wrong = np.zeros(count, dtype=np.bool_)
    for rows in (results.dense, results.logits):
        if rows is not None and not np.isfinite(rows).all():
            wrong |= ~np.isfinite(rows).all(axis=1)
    sparse = None if results.sparse is None else [vector.values for vector in results.sparse]
    if results.sound is not None:
        wrong |= ~results.sound
    by_token = (results.multi_vectors, results.hidden) if results.sound is None else ()
    for arrays in (sparse, *by_token):
        if arrays is not None:
            wrong |= np.array([not np.isfinite(array).all() for array in arrays], dtype=np.bool_)
    return wrong


def bounded(places: Int32Array, lengths: Int32Array) -> Int32Array:
    """The first of the places, at most `MOST_INPUTS` with `MOST_TOKENS` in all."""
    first = places[:MOST_INPUTS]
    return first[np.cumsum(lengths[first]) <= MOST_TOKENS]


def replaced(results: Results, places: Sequence[int], by: Results) -> Results:
    """The results with those of some sequences replaced."""
    return Results(
        _rows(results.dense, places, by.dense),
        _rows(results.logits, places, by.logits),
        _listed(results.sparse, places, by.sparse),
        _listed(results.multi_vectors, places, by.multi_vectors),
        _listed(results.hidden, places, by.hidden),
        results.padding + by.padding,
    )


def _rows(rows: FloatArray | None, places: Sequence[int], by: FloatArray | None) -> FloatArray | None:
    if rows is None or by is None:
        return rows
    copied = rows.copy()
    copied[list(places)] = by
    return copied


def _listed(values: Sequence[T] | None, places: Sequence[int], by: Sequence[T] | None) -> Sequence[T] | None:
    if values is None or by is None:
        return values
    copied = [*values]
    for place, value in zip(places, by, strict=True):
        copied[place] = value
    return copied
