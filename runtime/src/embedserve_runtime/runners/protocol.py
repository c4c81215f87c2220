"""Defines what the scheduler needs of a runner: it runs packed batches. No model or engine library is needed."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind


@runtime_checkable
class BatchRunner(Protocol):
    """Runs batches. Only the threads of its executor call it, one at a time. Raises EngineFailure."""

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        """Return the outputs of each sequence, from one forward pass."""
        ...


class InFlightBatch(Protocol):
    """A batch that a runner has taken and whose results have not been read."""

    def results(self) -> ModelOutput:
        """Wait for the results. Called once, maybe while other batches are submitted. Raises EngineFailure."""
        ...


@runtime_checkable
class AsyncBatchRunner(BatchRunner, Protocol):
    """A runner that accepts further batches while one runs."""

    @property
    def max_in_flight(self) -> int:
        """The number of batches that may be submitted before the results of the first are read."""
        ...

    def submit(self, batch: PackedBatch, outputs: OutputKind) -> InFlightBatch:
        """Queue a batch and return without waiting; results are read in the order of submission. Raises
        EngineFailure."""
        ...
