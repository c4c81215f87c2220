"""What is scheduled, as values: a request's job, a batch that has been cut, and what came of running it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Protocol

from msgspec import Struct

from embedserve_runtime.engines.base import PackedBatch, Tokens
from embedserve_runtime.errors import BatchTooLarge, EmbedserveError, EngineFailure
from embedserve_runtime.results import Output, Results
from embedserve_runtime.running import Overlaps, Runs
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.scheduling.recovery import isolate

log = logging.getLogger(__name__)

FAILED = "the engine failed on this batch"


class Completed(Struct, frozen=True):
    """In the order of the submitted sequences; seconds are means over the inputs."""

    results: Results
    queue_seconds: float
    engine_seconds: float


class Order(Struct, frozen=True):
    """What a request wants of its sequences. most_bytes: of results that differ in length, None for no bound."""

    sequences: Sequence[Tokens]
    wanted: Output
    most_bytes: int | None = None


Settle = Callable[[Completed | EmbedserveError], None]


class Submits(Protocol):
    """Where requests are run: the dispatcher of this process, or the way to that of another."""

    @property
    def limits(self) -> Limits: ...

    def check_room(self, inputs: int) -> None:
        """Refuse early, before anything is spent on tokenising. Raises as `submit`."""
        ...

    def start(self, order: Order, deadline: float, settle: Settle) -> int:
        """Run the sequences, in as many batches as it takes; `settle` is called once with what comes of it.

        Returns a number for `withdraw`. The outcome is DeadlineExceeded at the deadline (a time of the service's
        clock), EngineFailure, or NotReady when closed. Overloaded, BatchTooLarge and NotReady may be raised at once.
        """
        ...

    def withdraw(self, number: int) -> None:
        """Take what still waits out of the queue and settle it no more; settled ones are not known."""
        ...

    async def submit(self, order: Order, deadline: float) -> Completed:
        """`start` for who waits: failures are raised, a cancelled call is withdrawn."""
        ...


class Job:
    """A request that has been admitted, until it is answered. `settle` gets its outcome."""

    __slots__ = (
        "_bytes",
        "_engine_seconds",
        "_parts",
        "_queue_seconds",
        "admitted",
        "number",
        "order",
        "remaining",
        "settle",
    )

    def __init__(self, number: int, order: Order, settle: Settle, now: float) -> None:
        self.number = number
        self.order = order
        self.settle = settle
        self.admitted = now
        self.remaining = len(order.sequences)
        self._parts: list[tuple[Sequence[int], Results]] = []
        self._bytes = 0
        self._queue_seconds = 0.0
        self._engine_seconds = 0.0

    def take(self, inputs: Sequence[int], outcome: Outcome, start: int) -> Completed | EmbedserveError | None:
        """Take what is its own out of an outcome, from place `start` on; the answer when it was the last, or failed."""
        end = start + len(inputs)
        if outcome.failed:
            failure = next((outcome.failed[row] for row in range(start, end) if row in outcome.failed), None)
            if failure:
                # Each request gets an error of its own: raised, it holds on to what was on its way.
                own = EngineFailure(failure.message)
                own.__cause__ = failure.__cause__
                return own
        self._queue_seconds += (outcome.started - self.admitted) * len(inputs)
        self._engine_seconds += outcome.seconds * len(inputs)
        part = outcome.results.of(start, end, self.order.wanted)
        if self._is_too_large(part):
            return BatchTooLarge(
                f"the results of this request take more than {self.order.most_bytes} bytes; send fewer inputs"
            )
        self._parts.append((inputs, part))
        self.remaining -= len(inputs)
        if self.remaining:
            return None
        count = len(self.order.sequences)
        results = Results.placed(count, self._parts)
        return Completed(results, self._queue_seconds / count, self._engine_seconds / count)

    def _is_too_large(self, part: Results) -> bool:
        most = self.order.most_bytes
        if most is None:
            return False
        self._bytes += part.ragged_bytes
        return self._bytes > most


@dataclass(frozen=True)
class Cut:
    """A batch that has been cut: its jobs with the inputs of each, in the order of its rows."""

    parts: tuple[tuple[Job, Sequence[int]], ...]
    tokens: int
    inputs: int

    @cached_property
    def packed(self) -> PackedBatch:
        return PackedBatch.pack(self.sequences)

    @property
    def sequences(self) -> Sequence[Tokens]:
        parts = [_taken(job.order.sequences, inputs) for job, inputs in self.parts]
        return parts[0] if len(parts) == 1 else [*chain.from_iterable(parts)]

    @property
    def wanted(self) -> Output:
        wanted = Output(0)
        for job, _ in self.parts:
            if (
                job.order.wanted is not wanted
            ):  # a union of flags takes longer than all else of a short request
                wanted |= job.order.wanted
        return wanted


def _taken(sequences: Sequence[Tokens], places: Sequence[int]) -> Sequence[Tokens]:
    return sequences if places == range(len(sequences)) else [sequences[place] for place in places]


class Ran(Struct, frozen=True):
    """One run of the engine."""

    inputs: int
    tokens: int
    padding: int
    seconds: float
    failed: bool


class Outcome(Struct, frozen=True):
    """results: by place in the batch, anything at the places in `failed`. runs: one, unless it failed."""

    results: Results
    failed: dict[int, EngineFailure]
    started: float
    seconds: float
    runs: tuple[Ran, ...]


def run_cut(cut: Cut, runs: Runs, clock: Callable[[], float]) -> Outcome:
    """Run a batch; if that fails, find the inputs that are to blame and run the others."""
    started = clock()
    return finish(cut, lambda: runs.run(cut.packed, cut.wanted), runs, started, clock)


def submitted(cut: Cut, runs: Overlaps) -> Callable[[], Results]:
    """Submit a batch. Gives what waits for its results; a failure to submit comes from there too."""
    try:
        return runs.submit(cut.packed, cut.wanted).results
    except EngineFailure as error:
        failure = error
    except Exception:
        log.exception("the engine failed", extra={"tokens": cut.tokens})
        failure = EngineFailure(FAILED)
    return partial(_raise, failure)


def _raise(failure: EngineFailure) -> Results:
    raise failure


def finish(
    cut: Cut, results_of_all: Callable[[], Results], runs: Runs, started: float, clock: Callable[[], float]
) -> Outcome:
    """As `run_cut`, of a batch whose results are there or under way. started: when the engine began with it."""
    account = _Account(clock)
    failed: dict[int, EngineFailure] = {}
    try:
        results = account.of(cut.inputs, cut.tokens, results_of_all, started)
    except EngineFailure as failure:
        log.warning(
            "the engine failed on a batch, running its parts",
            extra={"inputs": cut.inputs, "tokens": cut.tokens, "error": failure.message},
        )
        sequences, wanted = cut.sequences, cut.wanted

        def run(group: Sequence[int]) -> Results:
            batch = PackedBatch.pack([sequences[place] for place in group])
            return account.of(len(group), batch.tokens, lambda: runs.run(batch, wanted), clock())

        done, failed = isolate(cut.inputs, run, failure)
        results = Results.placed(cut.inputs, done)
    return Outcome(results, failed, started, clock() - started, tuple(account.log))


class _Account:
    """Keeps account of runs. Whatever an engine library throws becomes an EngineFailure."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.log: list[Ran] = []

    def of(self, inputs: int, tokens: int, run: Callable[[], Results], started: float) -> Results:
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
            self.log.append(Ran(inputs, tokens, padding, self._clock() - started, failed))
        return results
