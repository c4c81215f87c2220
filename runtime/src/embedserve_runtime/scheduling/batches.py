"""The values that scheduling passes on: requests, scheduled batches, and the outcomes of running them."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Protocol

from msgspec import Struct

from embedserve_runtime.errors import BatchTooLarge, EmbedserveError, EngineFailure
from embedserve_runtime.forward.batch import PackedBatch, Tokens
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.scheduling.clients import Client
from embedserve_runtime.scheduling.policy import BatchPlan, Limits


class CompletedRequest(Struct, frozen=True):
    """The results of a request, in the order of its sequences. The seconds are means over its inputs."""

    results: ModelOutput
    queue_seconds: float
    engine_seconds: float


class BatchRequest(Struct, frozen=True):
    """The sequences of a request and the outputs that it asks for.

    max_bytes: bound on the results that differ in length; None for no bound. client: who sends it, where clients are
    told apart. repeats: how many times the client's request has each of the sequences; None: once.
    """

    sequences: Sequence[Tokens]
    outputs: OutputKind
    max_bytes: int | None = None
    client: Client | None = None
    repeats: Sequence[int] | None = None

    def count_usage(self, lengths: Sequence[int]) -> tuple[int, int]:
        """Return the inputs and the tokens that the client has sent. lengths: of the sequences, in tokens."""
        if self.repeats is None:
            return len(lengths), sum(lengths)
        return sum(self.repeats), sum(map(operator.mul, lengths, self.repeats))


RequestCallback = Callable[[CompletedRequest | EmbedserveError], None]


class RequestDispatcher(Protocol):
    """Runs requests: the dispatcher of this process, or a stand-in for the dispatcher of another process."""

    @property
    def limits(self) -> Limits: ...

    def check_room(self, inputs: int, client: Client | None = None) -> None:
        """Refuse a request that cannot be admitted, as early as possible and before it is tokenized.

        Raises BatchTooLarge, NotReady, Overloaded, RateLimited.
        """
        ...

    def start(self, request: BatchRequest, deadline: float, settle: RequestCallback) -> int:
        """Run the sequences, in as many batches as it takes; `settle` is called once with what comes of it.

        Returns the request's id, for `abort`. The outcome is DeadlineExceeded at the deadline (a time of the service's
        clock), EngineFailure, or NotReady when closed. Overloaded, BatchTooLarge and NotReady may be raised at once.
        """
        ...

    def abort(self, request_id: int) -> None:
        """Take what still waits out of the queue and settle it no more; settled ones are not known."""
        ...

    async def meter_reused(self, client: Client, inputs: int, tokens: int) -> None:
        """Count inputs of a client that were answered by what ran for another request. Raises RateLimited."""
        ...

    async def submit(self, request: BatchRequest, deadline: float) -> CompletedRequest:
        """Run the sequences and wait for the results. A failure is raised; a cancelled call is aborted."""
        ...


class AdmittedRequest:
    """A request that has been admitted, until it is answered.

    settle: gets its outcome. timer: ends the request at its deadline.
    """

    __slots__ = (
        "_bytes",
        "_engine_seconds",
        "_parts",
        "_queue_seconds",
        "admitted_at",
        "remaining",
        "request",
        "request_id",
        "settle",
        "timer",
    )

    def __init__(self, request_id: int, request: BatchRequest, settle: RequestCallback, now: float) -> None:
        self.request_id = request_id
        self.request = request
        self.settle = settle
        self.timer: asyncio.TimerHandle | None = None
        self.admitted_at = now
        self.remaining = len(request.sequences)
        self._parts: list[tuple[Sequence[int], ModelOutput]] = []
        self._bytes = 0
        self._queue_seconds = 0.0
        self._engine_seconds = 0.0

    def take(
        self, inputs: Sequence[int], outcome: BatchOutcome, start: int
    ) -> CompletedRequest | EmbedserveError | None:
        """Take the rows of this request, which begin at `start`, out of an outcome.

        Returns the answer to the request once it is complete or has failed.
        """
        end = start + len(inputs)
        if outcome.failed:
            failure = next((outcome.failed[row] for row in range(start, end) if row in outcome.failed), None)
            if failure:
                # Each request gets an error of its own: raised, it holds on to what it passed through.
                own = EngineFailure(failure.message)
                own.__cause__ = failure.__cause__
                return own
        self._queue_seconds += (outcome.started - self.admitted_at) * len(inputs)
        self._engine_seconds += outcome.seconds * len(inputs)
        part = outcome.results.slice(start, end, self.request.outputs)
        if self._is_too_large(part):
            return BatchTooLarge(
                f"the results of this request take more than {self.request.max_bytes} bytes; send fewer inputs"
            )
        self._parts.append((inputs, part))
        self.remaining -= len(inputs)
        if self.remaining:
            return None
        count = len(self.request.sequences)
        results = ModelOutput.gather(count, self._parts)
        return CompletedRequest(results, self._queue_seconds / count, self._engine_seconds / count)

    def _is_too_large(self, part: ModelOutput) -> bool:
        max_bytes = self.request.max_bytes
        if max_bytes is None:
            return False
        self._bytes += part.ragged_bytes
        return self._bytes > max_bytes


@dataclass(frozen=True)
class ScheduledBatch:
    """A batch to run.

    parts: its requests with the inputs of each, in the order of the rows. plan: that it was formed by.
    is_express: tells whether the batch runs beside regular ones; its time is not used to estimate the engine's rate.
    """

    parts: tuple[tuple[AdmittedRequest, Sequence[int]], ...]
    plan: BatchPlan
    is_express: bool = False

    @property
    def tokens(self) -> int:
        return self.plan.tokens

    @property
    def inputs(self) -> int:
        return self.plan.inputs

    @cached_property
    def packed(self) -> PackedBatch:
        return PackedBatch.pack(self.sequences)

    @property
    def sequences(self) -> Sequence[Tokens]:
        parts = [_select(admitted.request.sequences, inputs) for admitted, inputs in self.parts]
        return parts[0] if len(parts) == 1 else [*chain.from_iterable(parts)]

    @property
    def outputs(self) -> OutputKind:
        outputs = OutputKind(0)
        for admitted, _ in self.parts:
            # A union of flags takes longer than all else of a short request.
            if admitted.request.outputs is not outputs:
                outputs |= admitted.request.outputs
        return outputs


def _select(sequences: Sequence[Tokens], indices: Sequence[int]) -> Sequence[Tokens]:
    return sequences if indices == range(len(sequences)) else [sequences[index] for index in indices]


class EngineRun(Struct, frozen=True):
    """Statistics of one run of the engine."""

    inputs: int
    tokens: int
    padding: int
    seconds: float
    failed: bool


class BatchOutcome(Struct, frozen=True):
    """The outcome of a batch.

    results: in the order of the rows, undefined for the rows in `failed`. runs: one, unless the batch failed.
    """

    results: ModelOutput
    failed: dict[int, EngineFailure]
    started: float
    seconds: float
    runs: tuple[EngineRun, ...]
