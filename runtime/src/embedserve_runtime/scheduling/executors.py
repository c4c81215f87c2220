"""Executors run batches on a runner, on threads of their own.

A serial executor has one thread, which runs a batch from beginning to end. A pipelined one has two: the first packs a
batch and submits it while an earlier one runs, the second waits for results in the order of submission.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.runners.protocol import AsyncBatchRunner, BatchRunner
from embedserve_runtime.scheduling.batches import BatchOutcome, ScheduledBatch
from embedserve_runtime.scheduling.execution import finish_batch, run_batch, submit_batch

Clock = Callable[[], float]
# The next batch, None when there will be no more; waits for one.
NextBatch = Callable[[], ScheduledBatch | None]
OnBatchDone = Callable[[ScheduledBatch, BatchOutcome], None]


class Executor(Protocol):
    """Runs batches from its creation until `take` returns None."""

    def join(self, seconds: float) -> None:
        """Wait until the last batch has ended, for at most `seconds`."""
        ...


def start_executor(
    runner: BatchRunner, clock: Clock, take: NextBatch, give: OnBatchDone, name: str
) -> Executor:
    """Start the executor that suits the runner. It calls `take` and `give` on its own threads."""
    if isinstance(runner, AsyncBatchRunner) and runner.max_in_flight > 1:
        return PipelinedExecutor(runner, clock, take, give, name)
    return SerialExecutor(runner, clock, take, give, name)


class SerialExecutor:
    """Runs one batch after another."""

    def __init__(
        self, runner: BatchRunner, clock: Clock, take: NextBatch, give: OnBatchDone, name: str
    ) -> None:
        def work() -> None:
            while batch := take():
                give(batch, run_batch(batch, runner, clock))
                del batch  # lest a batch and its results stay in memory until the next one comes

        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)


@dataclass(frozen=True, slots=True)
class _SubmittedBatch:
    batch: ScheduledBatch
    submitted: float
    results: Callable[[], ModelOutput]


class _LockedRunner:
    """Runs the parts of a failed batch on the second thread, while the first one may be submitting."""

    def __init__(self, runner: BatchRunner, lock: threading.Lock) -> None:
        self._runner = runner
        self._lock = lock

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        with self._lock:
            return self._runner.run(batch, outputs)


class PipelinedExecutor:
    """Prepares and submits further batches while one runs, as many as the runner takes."""

    def __init__(
        self, runner: AsyncBatchRunner, clock: Clock, take: NextBatch, give: OnBatchDone, name: str
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._take = take
        self._give = give
        self._lock = threading.Lock()
        self._retry_runner = _LockedRunner(runner, self._lock)
        self._room = threading.Semaphore(runner.max_in_flight)
        # Bounded by the room: who puts has acquired it.
        self._in_flight: queue.SimpleQueue[_SubmittedBatch | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._submit, name=name, daemon=True),
            threading.Thread(target=self._collect, name=f"{name}-results", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> None:
        deadline = self._clock() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))

    def _submit(self) -> None:
        while True:
            self._room.acquire()
            batch = self._take()
            if batch is None:
                self._in_flight.put(None)
                return
            started = self._clock()
            with self._lock:
                results = submit_batch(batch, self._runner)
            self._in_flight.put(_SubmittedBatch(batch, started, results))
            del batch, results  # lest they stay in memory until the next batch comes

    def _collect(self) -> None:
        free_since = self._clock()
        while submitted_batch := self._in_flight.get():
            # A batch that waited for another one starts when that one ends.
            started = max(submitted_batch.submitted, free_since)
            outcome = finish_batch(
                submitted_batch.batch, submitted_batch.results, self._retry_runner, started, self._clock
            )
            free_since = self._clock()
            self._room.release()
            self._give(submitted_batch.batch, outcome)
            del submitted_batch, outcome
