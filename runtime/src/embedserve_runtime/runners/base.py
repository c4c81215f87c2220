"""Runs a loaded model, its engine with its heads, in one call. The threads of its executor own it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from msgspec.structs import replace

from embedserve_runtime.engines.base import (
    EncoderEngine,
    EngineDescription,
    FloatArray,
    MemoryStatus,
    PackedBatch,
)
from embedserve_runtime.engines.results import Output, Results, SparseVector
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

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        """Results of the sequences of the batch, from one forward pass. `wanted`: of what `card.outputs` has.

        Raises EngineFailure.
        """
        ...


def repeat_by_concurrency(runners: Sequence[Runner]) -> list[Runner]:
    """List each runner as often as it runs batches at once."""
    return [runner for runner in runners for _ in range(runner.engine.concurrency)]


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

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        heads = self._heads
        hidden = self._engine.forward(batch)
        return Results(
            dense=heads.dense(hidden, batch) if heads.dense and Output.DENSE in wanted else None,
            logits=heads.logits(hidden, batch) if heads.logits and Output.LOGITS in wanted else None,
            sparse=heads.sparse(hidden, batch) if heads.sparse and Output.SPARSE in wanted else None,
            multi_vectors=heads.multi_vectors(hidden, batch)
            if heads.multi_vectors and Output.MULTI_VECTOR in wanted
            else None,
            hidden=np.split(hidden, batch.cu_seqlens[1:-1]) if Output.HIDDEN in wanted else None,
            padding=self._engine.padding,
        )


class TokenWeightEngine(EncoderEngine, Protocol):
    """An engine that gives a weight for each token in addition to its state."""

    def run_states(
        self, batch: PackedBatch, *, hidden: bool, weights: bool
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """(tokens, hidden size) and (tokens, 1), each if it is asked for. Raises EngineFailure."""
        ...


class TokenWeightRunner(EngineRunner[TokenWeightEngine]):
    """Dense and sparse vectors of one run of an engine that weighs tokens itself."""

    def __init__(
        self,
        card: ModelCard,
        engine: TokenWeightEngine,
        dense: Callable[[FloatArray, PackedBatch], FloatArray],
        sparse: Callable[[FloatArray, PackedBatch], list[SparseVector]],
    ) -> None:
        """sparse: of weights."""
        super().__init__(card, engine)
        self._dense = dense
        self._sparse = sparse

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        hidden, weights = self._engine.run_states(
            batch, hidden=bool(wanted & (Output.DENSE | Output.HIDDEN)), weights=Output.SPARSE in wanted
        )
        states = hidden if Output.HIDDEN in wanted else None
        return Results(
            dense=self._dense(hidden, batch) if hidden is not None and Output.DENSE in wanted else None,
            sparse=None if weights is None else self._sparse(weights, batch),
            hidden=None if states is None else np.split(states, batch.cu_seqlens[1:-1]),
            padding=self._engine.padding,
        )


class RoutedRunner:
    """Documents through one model and queries through another, whose vectors can be compared.

    It is asynchronous where one of the two is.
    """

    def __init__(self, documents: Runner, queries: Runner) -> None:
        self._documents = documents
        self._queries = queries

    @property
    def card(self) -> ModelCard:
        return self._documents.card

    @property
    def engine(self) -> EngineDescription:
        """The description of the documents' engine, with one batch at a time: not every engine runs several."""
        return dataclasses.replace(self._documents.engine, concurrency=1, takes_more=False)

    @property
    def memory(self) -> MemoryStatus:
        """The failures of both routes, and the lower of their limits."""
        routes = (self._documents.memory, self._queries.memory)
        limits = [route.max_tokens for route in routes if route.max_tokens is not None]
        return MemoryStatus(sum(route.failures for route in routes), min(limits, default=None))

    @property
    def recomputed(self) -> int:
        return self._documents.recomputed + self._queries.recomputed

    @property
    def max_in_flight(self) -> int:
        """The number that both runners take; a runner that is not asynchronous has its results once it has taken a
        batch."""
        routes = (self._documents, self._queries)
        return min(
            (route.max_in_flight for route in routes if isinstance(route, AsyncBatchRunner)), default=1
        )

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        return self.submit(batch, wanted).results()

    def submit(self, batch: PackedBatch, wanted: Output) -> InFlightBatch:
        """Queue the batch on both runners. Raises EngineFailure."""
        if batch.queries is None:
            return _submit(self._documents, batch, wanted)
        if batch.queries.all():
            return _submit(self._queries, batch, wanted)
        routes = [(self._documents, ~batch.queries), (self._queries, batch.queries)]
        # Asynchronous ones first: a device works while the other runner is on the host.
        routes.sort(key=lambda route: not isinstance(route[0], AsyncBatchRunner))
        parts = []
        for runner, own in routes:
            places = np.flatnonzero(own).astype(np.int32)
            parts.append((places.tolist(), _submit(runner, batch.select(places), wanted)))
        return _RoutedBatch(len(batch.lengths), parts)


@dataclass(frozen=True, slots=True, eq=False)
class _CompletedBatch:
    """A batch that has been run already."""

    all_results: Results

    def results(self) -> Results:
        return self.all_results


@dataclass(frozen=True, slots=True, eq=False)
class _RoutedBatch:
    """A batch that two runners share. count: of its sequences. parts: each with the places of its own."""

    count: int
    parts: Sequence[tuple[Sequence[int], InFlightBatch]]

    def results(self) -> Results:
        parts = [(places, part.results()) for places, part in self.parts]
        padding = sum(part.padding for _, part in parts)
        return replace(Results.gather(self.count, parts), padding=padding)


def _submit(runner: Runner, batch: PackedBatch, wanted: Output) -> InFlightBatch:
    if isinstance(runner, AsyncBatchRunner):
        return runner.submit(batch, wanted)
    return _CompletedBatch(runner.run(batch, wanted))
