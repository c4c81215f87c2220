"""Runs a scheduled batch on a runner, and finds the inputs that are to blame where it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import ModelOutput
from embedserve_runtime.runners.protocol import AsyncBatchRunner, BatchRunner
from embedserve_runtime.scheduling.batches import BatchOutcome, EngineRun, ScheduledBatch
from embedserve_runtime.scheduling.recovery import isolate_failures

log = logging.getLogger(__name__)

FAILED = "the engine failed on this batch"


def run_batch(batch: ScheduledBatch, runner: BatchRunner, clock: Callable[[], float]) -> BatchOutcome:
    """Run a batch; if it fails, find the inputs that are to blame and run the others."""
    started = clock()
    return finish_batch(batch, lambda: runner.run(batch.packed, batch.outputs), runner, started, clock)


def submit_batch(batch: ScheduledBatch, runner: AsyncBatchRunner) -> Callable[[], ModelOutput]:
    """Submit a batch and return a function that waits for its results. It also raises a failure to submit."""
    try:
        return runner.submit(batch.packed, batch.outputs).results
    except EngineFailure as error:
        failure = error
    except Exception:
        log.exception("the engine failed", extra={"tokens": batch.tokens})
        failure = EngineFailure(FAILED)
    return partial(_raise, failure)


def _raise(failure: EngineFailure) -> ModelOutput:
    raise failure


def finish_batch(
    batch: ScheduledBatch,
    read_results: Callable[[], ModelOutput],
    runner: BatchRunner,
    started: float,
    clock: Callable[[], float],
) -> BatchOutcome:
    """Wait for the results of a batch; if it fails, find the inputs that are to blame and run the others.

    started: when the engine began with the batch.
    """
    statistics = _RunStatistics(clock)
    failed: dict[int, EngineFailure] = {}
    try:
        results = statistics.measure(batch.inputs, batch.tokens, read_results, started)
    except EngineFailure as failure:
        log.warning(
            "the engine failed on a batch, running its parts",
            extra={"inputs": batch.inputs, "tokens": batch.tokens, "error": failure.message},
        )
        sequences, outputs = batch.sequences, batch.outputs

        def run(group: Sequence[int]) -> ModelOutput:
            packed = PackedBatch.pack([sequences[index] for index in group])
            return statistics.measure(len(group), packed.tokens, lambda: runner.run(packed, outputs), clock())

        done, failed = isolate_failures(batch.inputs, run, failure)
        results = ModelOutput.gather(batch.inputs, done)
    return BatchOutcome(results, failed, started, clock() - started, tuple(statistics.runs))


class _RunStatistics:
    """Measures runs of the engine. Whatever an engine library throws becomes an EngineFailure."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.runs: list[EngineRun] = []

    def measure(
        self, inputs: int, tokens: int, run: Callable[[], ModelOutput], started: float
    ) -> ModelOutput:
        failed, padding = True, 0
        try:
            results = run()
            failed, padding = False, results.padding
        except EngineFailure:
            raise
        except Exception as error:
            log.exception("the engine failed", extra={"tokens": tokens})
            raise EngineFailure(FAILED) from error
        finally:
            self.runs.append(EngineRun(inputs, tokens, padding, self._clock() - started, failed))
        return results
