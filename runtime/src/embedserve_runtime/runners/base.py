"""Runs a loaded model, its engine with its heads, in one call. The threads of its executor own it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from msgspec.structs import replace

from embedserve_runtime.engines.protocol import EncoderEngine
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import EngineDescription, MemoryStatus
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind, SparseVector
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.runners.protocol import AsyncBatchRunner, BatchRunner, InFlightBatch


class Runner(BatchRunner, Protocol):
    """A loaded model, which runs batches. `run` is called from as many threads at a time as `engine` says."""

    @property
    def card(self) -> ModelCard: ...

    @property
    def engine(self) -> EngineDescription: ...

    @property
    def memory(self) -> MemoryStatus: ...

    @property
    def recomputed(self) -> int:
        """Inputs whose results were not finite and that were computed again in float32."""
        ...

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        """Return these outputs of the sequences of the batch, from one forward pass. outputs: of what `card.outputs`
        has.

        Raises EngineFailure.
        """
        ...


def repeat_by_concurrency(runners: Sequence[Runner], max_concurrency: int | None = None) -> list[Runner]:
    """List each runner as often as it runs batches at once; at most `max_concurrency` times, where there is memory for
    no more."""
    concurrencies = [runner.engine.concurrency for runner in runners]
    return [
        runner
        for runner, concurrency in zip(runners, concurrencies, strict=True)
        for _ in range(concurrency if max_concurrency is None else min(concurrency, max_concurrency))
    ]


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a model, which take hidden states (tokens, hidden size); None for what the model has no head for."""

    dense: Callable[[FloatArray, PackedBatch], FloatArray] | None = None
    logits: Callable[[FloatArray, PackedBatch], FloatArray] | None = None
    sparse: Callable[[FloatArray, PackedBatch], list[SparseVector]] | None = None
    multi_vectors: Callable[[FloatArray, PackedBatch], list[FloatArray]] | None = None


E = TypeVar("E", bound=EncoderEngine)


class EngineRunner(Generic[E]):
    """The properties of a model that runs on one engine."""

    def __init__(self, card: ModelCard, engine: E) -> None:
        self._card = card
        self._engine = engine

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def engine(self) -> EngineDescription:
        return self._engine.description

    @property
    def memory(self) -> MemoryStatus:
        return self._engine.memory

    @property
    def recomputed(self) -> int:
        return 0


class EncoderRunner(EngineRunner[EncoderEngine]):
    """An encoder on an engine that gives hidden states, and the heads on the host."""

    def __init__(self, card: ModelCard, engine: EncoderEngine, heads: Heads) -> None:
        super().__init__(card, engine)
        self._heads = heads

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        heads = self._heads
        hidden = self._engine.forward(batch)
        return ModelOutput(
            dense=heads.dense(hidden, batch) if heads.dense and OutputKind.DENSE in outputs else None,
            logits=heads.logits(hidden, batch) if heads.logits and OutputKind.LOGITS in outputs else None,
            sparse=heads.sparse(hidden, batch) if heads.sparse and OutputKind.SPARSE in outputs else None,
            multi_vectors=heads.multi_vectors(hidden, batch)
            if heads.multi_vectors and OutputKind.MULTI_VECTOR in outputs
            else None,
            hidden=np.split(hidden, batch.cu_seqlens[1:-1]) if OutputKind.HIDDEN in outputs else None,
            padding=self._engine.padding,
        )


class TokenWeightEngine(EncoderEngine, Protocol):
    """An engine that gives a weight for each token in addition to its state."""

    def run_states(
        self, batch: PackedBatch, *, hidden: bool, weights: bool
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """Return hidden states, (tokens, hidden size), and token weights, (tokens, 1), each if it is asked for. Raises
        EngineFailure."""
        ...


class TokenWeightRunner(EngineRunner[TokenWeightEngine]):
    """Dense and sparse vectors of one run of an engine that weighs tokens itself.

    dense, sparse: make vectors of the states and of the weights of tokens.
    """

    def __init__(
        self,
        card: ModelCard,
        engine: TokenWeightEngine,
        dense: Callable[[FloatArray, PackedBatch], FloatArray],
        sparse: Callable[[FloatArray, PackedBatch], list[SparseVector]],
    ) -> None:
        super().__init__(card, engine)
        self._dense = dense
        self._sparse = sparse

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        hidden, weights = self._engine.run_states(
            batch,
            hidden=bool(outputs & (OutputKind.DENSE | OutputKind.HIDDEN)),
            weights=OutputKind.SPARSE in outputs,
        )
        states = hidden if OutputKind.HIDDEN in outputs else None
        return ModelOutput(
            dense=self._dense(hidden, batch) if hidden is not None and OutputKind.DENSE in outputs else None,
            sparse=None if weights is None else self._sparse(weights, batch),
            hidden=None if states is None else np.split(states, batch.cu_seqlens[1:-1]),
            padding=self._engine.padding,
        )


class SplitRunner(ABC):
    """Several models, each of which runs its own sequences of a batch. It is asynchronous where one of them is.

    runners: by their numbers; what the runner says of itself is what the first says.
    """

    def __init__(self, runners: Sequence[Runner]) -> None:
        self._runners = runners

    @abstractmethod
    def find_numbers(self, batch: PackedBatch) -> Int32Array | None:
        """Return the number of the runner of each sequence, (sequences,); None where it is 0 for all."""

    @property
    def card(self) -> ModelCard:
        return self._runners[0].card

    @property
    def engine(self) -> EngineDescription:
        """The description of the first engine, with one batch at a time: not every engine runs several."""
        return dataclasses.replace(self._runners[0].engine, concurrency=1, can_overcommit=False)

    @property
    def memory(self) -> MemoryStatus:
        """The failures of all, and the lowest of their limits."""
        statuses = [runner.memory for runner in self._runners]
        limits = [status.max_batch_tokens for status in statuses if status.max_batch_tokens is not None]
        return MemoryStatus(sum(status.failures for status in statuses), min(limits, default=None))

    @property
    def recomputed(self) -> int:
        return sum(runner.recomputed for runner in self._runners)

    @property
    def max_in_flight(self) -> int:
        """The number that all runners take; a runner that is not asynchronous has its results once it has taken a
        batch."""
        return min(
            (runner.max_in_flight for runner in self._runners if isinstance(runner, AsyncBatchRunner)),
            default=1,
        )

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        return self.submit(batch, outputs).results()

    def submit(self, batch: PackedBatch, outputs: OutputKind) -> InFlightBatch:
        """Queue the batch on the runners of its sequences. Raises EngineFailure."""
        numbers = self.find_numbers(batch)
        if numbers is None:
            return _submit(self._runners[0], batch, outputs)
        used = np.unique(numbers).tolist()
        if len(used) == 1:
            return _submit(self._runners[used[0]], batch, outputs)
        # Asynchronous ones first: a device works while another runner is on the host.
        used.sort(key=lambda number: not isinstance(self._runners[number], AsyncBatchRunner))
        parts = []
        for number in used:
            indices = np.flatnonzero(numbers == number).astype(np.int32)
            parts.append((indices.tolist(), _submit(self._runners[number], batch.select(indices), outputs)))
        return _SplitBatch(len(batch.lengths), parts)


class RoutedRunner(SplitRunner):
    """Documents through one model and queries through another, whose vectors can be compared."""

    def __init__(self, documents: Runner, queries: Runner) -> None:
        super().__init__([documents, queries])

    def find_numbers(self, batch: PackedBatch) -> Int32Array | None:
        return None if batch.queries is None else batch.queries.astype(np.int32)


class TaskRunner(SplitRunner):
    """A runner for each task of a model, each with the weights of its adapter."""

    def find_numbers(self, batch: PackedBatch) -> Int32Array | None:
        return batch.tasks


@dataclass(frozen=True, slots=True, eq=False)
class _CompletedBatch:
    """A batch that has been run already."""

    all_results: ModelOutput

    def results(self) -> ModelOutput:
        return self.all_results


@dataclass(frozen=True, slots=True, eq=False)
class _SplitBatch:
    """A batch that several runners share. count: of its sequences. parts: each with the indices of its own."""

    count: int
    parts: Sequence[tuple[Sequence[int], InFlightBatch]]

    def results(self) -> ModelOutput:
        parts = [(indices, part.results()) for indices, part in self.parts]
        padding = sum(part.padding for _, part in parts)
        return replace(ModelOutput.gather(self.count, parts), padding=padding)


def _submit(runner: Runner, batch: PackedBatch, outputs: OutputKind) -> InFlightBatch:
    if isinstance(runner, AsyncBatchRunner):
        return runner.submit(batch, outputs)
    return _CompletedBatch(runner.run(batch, outputs))
