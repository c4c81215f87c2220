"""What is scheduled, as values: a request's job, a batch that has been cut, and what came of running it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from embedserve_runtime.engines.base import FloatArray, Int32Array, PackedBatch
from embedserve_runtime.errors import EmbedserveError, EngineFailure
from embedserve_runtime.scheduling.recovery import isolate

log = logging.getLogger(__name__)


class Runs(Protocol):
    """What is dispatched to: called from the engine's thread alone, one batch at a time. Raise EngineFailure."""

    def pooled(self, batch: PackedBatch) -> FloatArray:
        """A row for each sequence."""
        ...

    def with_hidden(self, batch: PackedBatch) -> tuple[FloatArray, FloatArray]:
        """The same rows, and the packed hidden states behind them, from one forward pass."""
        ...


@dataclass(frozen=True, slots=True)
class Completed:
    """In the order of the submitted sequences; seconds are means over the inputs.

    hidden: an array (tokens, hidden size) for each input, if asked for, else empty.
    """

    rows: FloatArray
    hidden: Sequence[FloatArray]
    queue_seconds: float
    engine_seconds: float


class Job:
    """A submitted request until it is answered."""

    def __init__(
        self,
        number: int,
        sequences: Sequence[Int32Array],
        wants_hidden: bool,
        future: asyncio.Future[Completed],
        now: float,
    ) -> None:
        self.number = number
        self.sequences = sequences
        self.wants_hidden = wants_hidden
        self.future = future
        self.admitted = now
        self.remaining = len(sequences)
        self._rows: FloatArray | None = None
        self._hidden: dict[int, FloatArray] = {}
        self._queue_seconds = 0.0
        self._engine_seconds = 0.0

    def take(self, inputs: tuple[int, ...], outcome: Outcome, start: int) -> None:
        """Take what is its own out of an outcome, from row `start` on, and answer when it was the last."""
        end = start + len(inputs)
        if outcome.failed:
            failure = next((outcome.failed[row] for row in range(start, end) if row in outcome.failed), None)
            if failure:
                self.fail(EngineFailure(failure.message))
                return
        self._queue_seconds += (outcome.started - self.admitted) * len(inputs)
        self._engine_seconds += outcome.seconds * len(inputs)
        if self.wants_hidden:
            # Copies: a view would keep the states of the whole batch in memory.
            states = outcome.hidden[start:end]
            self._hidden.update((index, rows.copy()) for index, rows in zip(inputs, states, strict=True))
        self._place(inputs, outcome.rows[start:end])

    def fail(self, error: EmbedserveError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def _place(self, inputs: tuple[int, ...], rows: FloatArray) -> None:
        count = len(self.sequences)
        if count == 1:
            self._rows = rows
        else:
            if self._rows is None:
                self._rows = np.empty((count, rows.shape[1]), dtype=np.float32)
            self._rows[list(inputs)] = rows
        self.remaining -= len(inputs)
        if not self.remaining:
            hidden = [self._hidden[index] for index in range(count)] if self.wants_hidden else ()
            self.future.set_result(
                Completed(self._rows, hidden, self._queue_seconds / count, self._engine_seconds / count)
            )


@dataclass(frozen=True)
class Cut:
    """A batch that has been cut: its jobs with the inputs of each, in the order of its rows."""

    parts: tuple[tuple[Job, tuple[int, ...]], ...]
    tokens: int
    inputs: int

    @cached_property
    def packed(self) -> PackedBatch:
        return PackedBatch.pack(self.sequences)

    @property
    def sequences(self) -> list[Int32Array]:
        return [job.sequences[index] for job, inputs in self.parts for index in inputs]

    @property
    def wants_hidden(self) -> bool:
        return any(job.wants_hidden for job, _ in self.parts)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of the engine."""

    inputs: int
    tokens: int
    seconds: float
    failed: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """rows, hidden: by place in the batch, anything at the places in `failed`. runs: one, unless it failed."""

    rows: FloatArray
    hidden: Sequence[FloatArray]
    failed: dict[int, EngineFailure]
    started: float
    seconds: float
    runs: tuple[Ran, ...]


def run_cut(cut: Cut, runs: Runs, clock: Callable[[], float]) -> Outcome:
    """Run a batch; if that fails, find the inputs that are to blame and run the others."""
    attempt = _Attempt(runs, clock, wants_hidden=cut.wants_hidden)
    started = clock()
    failed: dict[int, EngineFailure] = {}
    try:
        rows, hidden = attempt(cut.packed)
    except EngineFailure as failure:
        log.warning(
            "the engine failed on a batch, running its parts",
            extra={"inputs": cut.inputs, "tokens": cut.tokens, "error": failure.message},
        )
        sequences = cut.sequences
        done, failed = isolate(
            cut.inputs, lambda group: attempt(PackedBatch.pack([sequences[i] for i in group])), failure
        )
        rows, hidden = _gather(cut.inputs, done)
    return Outcome(rows, hidden, failed, started, clock() - started, tuple(attempt.log))


class _Attempt:
    """Runs batches and keeps account. Whatever an engine library throws becomes an EngineFailure."""

    def __init__(self, runs: Runs, clock: Callable[[], float], *, wants_hidden: bool) -> None:
        self._runs = runs
        self._clock = clock
        self._wants_hidden = wants_hidden
        self.log: list[Ran] = []

    def __call__(self, batch: PackedBatch) -> tuple[FloatArray, Sequence[FloatArray]]:
        started = self._clock()
        failed = True
        hidden: Sequence[FloatArray] = ()
        try:
            if self._wants_hidden:
                rows, states = self._runs.with_hidden(batch)
                hidden = np.split(states, batch.cu_seqlens[1:-1])
            else:
                rows = self._runs.pooled(batch)
            failed = False
        except EngineFailure:
            raise
        except Exception as error:
            log.exception("the engine failed", extra={"tokens": batch.tokens})
            raise EngineFailure("the engine failed on this batch") from error
        finally:
            self.log.append(Ran(len(batch.lengths), batch.tokens, self._clock() - started, failed))
        return rows, hidden


def _gather(
    count: int, done: list[tuple[Sequence[int], tuple[FloatArray, Sequence[FloatArray]]]]
) -> tuple[FloatArray, Sequence[FloatArray]]:
    """Put what the parts gave at their places in the batch."""
    width = done[0][1][0].shape[1] if done else 0
    rows = np.zeros((count, width), dtype=np.float32)
    hidden: list[FloatArray] = [rows[:0]] * count
    for group, (part, states) in done:
        rows[list(group)] = part
        for index, state in zip(group, states, strict=False):  # no states where nobody wants them
            hidden[index] = state
    return rows, hidden
