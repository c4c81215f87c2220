"""What a batch can be given to: the common tongue of runners and scheduler, free of models and engine libraries."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from embedserve_runtime.engines.base import PackedBatch
from embedserve_runtime.results import Output, Results


@runtime_checkable
class Runs(Protocol):
    """What is dispatched to: called from threads of its lane alone, one at a time. Raises EngineFailure."""

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        """What is wanted of each sequence, from one forward pass."""
        ...


class UnderWay(Protocol):
    """A batch that an engine has taken."""

    def results(self) -> Results:
        """Waits for them. Called once, maybe while other batches are submitted. Raises EngineFailure."""
        ...


@runtime_checkable
class Overlaps(Runs, Protocol):
    """An engine that takes the next batch while it runs one."""

    @property
    def most_under_way(self) -> int:
        """Batches that may be submitted before results of the first are read."""
        ...

    def submit(self, batch: PackedBatch, wanted: Output) -> UnderWay:
        """As `run`, without waiting for the results, which are read in the order of submission."""
        ...
