"""The shell around the policy: requests come in on the event loop, batches run on the engine's own thread.

    submit (loop) -> policy.admit ... engine thread: policy.cut -> pack -> run -> deliver (loop) -> submit
    returns

The engine's thread cuts for itself the moment it is free, so a request that arrives late still makes the next
batch. When the running batch is long enough to be predicted, the loop cuts and packs the next one just before
it ends, and the engine finds it ready.

One wake-up of the loop a batch and one future a request, whatever the number of inputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from embedserve_runtime.engines.base import FloatArray, Int32Array, PackedBatch
from embedserve_runtime.errors import DeadlineExceeded, EmbedserveError, EngineFailure, NotReady
from embedserve_runtime.scheduling.policy import Batch, Limits, Policy

log = logging.getLogger(__name__)

Run = Callable[[PackedBatch], FloatArray]
Clock = Callable[[], float]

# How long before its expected end the next batch is prepared: some ten times what cutting and packing take.
PREPARE_SECONDS = 0.002
# Batches expected to end sooner than this are not worth it.
LEAST_PREPARED_SECONDS = 0.010


class Observer(Protocol):
    """Told, on the event loop, about every batch that has run."""

    def batch_done(self, *, inputs: int, tokens: int, seconds: float, failed: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Completed:
    """Rows in the order of the submitted sequences; seconds are means over the inputs."""

    rows: FloatArray
    queue_seconds: float
    engine_seconds: float


@dataclass(frozen=True, slots=True)
class _Ready:
    """A batch that has been cut, packed for the engine."""

    batch: Batch
    packed: PackedBatch


class _Job:
    """A submitted request until it is answered."""

    __slots__ = ("admitted", "engine_seconds", "future", "queue_seconds", "remaining", "rows", "sequences")

    def __init__(
        self, sequences: Sequence[Int32Array], future: asyncio.Future[Completed], now: float
    ) -> None:
        self.sequences = sequences
        self.future = future
        self.admitted = now
        self.remaining = len(sequences)
        self.rows: FloatArray | None = None
        self.queue_seconds = 0.0
        self.engine_seconds = 0.0


class Dispatcher:
    """Owns the queue and the engine's thread."""

    def __init__(self, run: Run, limits: Limits, *, clock: Clock, observer: Observer) -> None:
        self._run = run
        self._clock = clock
        self._observer = observer
        self._policy = Policy(limits)
        self._jobs: dict[int, _Job] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._engine_is_running = False
        self._batches = 0
        self._prepared: _Ready | None = None
        self._closed: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._engine_loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def queued_inputs(self) -> int:
        return self._policy.queued_inputs

    @property
    def queued_tokens(self) -> int:
        return self._policy.queued_tokens

    @property
    def queue_seconds(self) -> float:
        return self._policy.queue_seconds

    @property
    def limits(self) -> Limits:
        return self._policy.limits

    def learn_rate(self, tokens_per_second: float) -> None:
        """Take a rate that was measured before the first request."""
        with self._lock:
            self._policy.tokens_per_second = tokens_per_second

    def check_room(self, inputs: int) -> None:
        """Refuse early, before anything is spent on tokenising. Raises as `submit`."""
        if self._closed:
            raise NotReady(self._closed)
        self._policy.check_room(inputs, 0)

    async def submit(self, sequences: Sequence[Int32Array], deadline: float) -> Completed:
        """Run the sequences, in as many batches as it takes.

        Raises Overloaded or BatchTooLarge at once, DeadlineExceeded at the deadline (a time of the clock
        given), EngineFailure, NotReady when closed. A cancelled call takes what still waits out of the queue.
        """
        if self._closed:
            raise NotReady(self._closed)
        number = next(self._numbers)
        now = self._clock()
        job = _Job(sequences, self._loop.create_future(), now)
        with self._lock:
            self._policy.admit(number, [len(sequence) for sequence in sequences], deadline)
            self._jobs[number] = job
            if not self._engine_is_running:
                self._wake.notify()
        self._idle.clear()
        timer = self._loop.call_later(deadline - now, self._expire, job)
        try:
            return await job.future
        finally:
            timer.cancel()
            self._forget(number)

    async def drained(self) -> None:
        """Return when no request is left."""
        await self._idle.wait()

    def close(self, message: str) -> None:
        """Take no more requests, fail those left as NotReady, and end the engine's thread after its batch."""
        with self._lock:
            self._closed = message
            for number in self._jobs:
                self._policy.cancel(number)
            self._prepared = None
            self._wake.notify()
        for job in self._jobs.values():
            _fail(job, NotReady(message))

    def _expire(self, job: _Job) -> None:
        waited = self._clock() - job.admitted
        _fail(
            job,
            DeadlineExceeded(f"not answered within {waited:.1f} s; the server is busy or the request large"),
        )

    def _forget(self, number: int) -> None:
        with self._lock:
            self._policy.cancel(number)
            del self._jobs[number]
        if not self._jobs:
            self._idle.set()

    def _cut(self) -> _Ready | None:
        """Cut and pack. Holds the lock already."""
        batch = self._policy.cut(self._clock())
        if batch is None:
            return None
        sequences = [
            self._jobs[part.request].sequences[index] for part in batch.parts for index in part.inputs
        ]
        return _Ready(batch, PackedBatch.pack(sequences))

    # -- on the engine's thread

    def _engine_loop(self) -> None:
        while ready := self._wait_for_batch():
            started = self._clock()
            outcome: FloatArray | EngineFailure
            try:
                outcome = self._run(ready.packed)
            except EngineFailure as error:
                outcome = error
            except Exception:  # whatever an engine library throws must fail this batch only
                log.exception(
                    "the engine failed", extra={"inputs": ready.batch.inputs, "tokens": ready.batch.tokens}
                )
                outcome = EngineFailure("the engine failed on this batch")
            finished = self._clock()
            self._call_on_loop(self._deliver, ready.batch, outcome, started, finished)

    def _wait_for_batch(self) -> _Ready | None:
        with self._lock:
            self._engine_is_running = False
            while True:
                if self._closed:
                    return None
                ready, self._prepared = self._prepared or self._cut(), None
                if ready:
                    break
                self._wake.wait()
            self._engine_is_running = True
            self._batches += 1
            number, rate = self._batches, self._policy.tokens_per_second
        expected = ready.batch.tokens / rate if rate else 0.0
        if expected >= LEAST_PREPARED_SECONDS:
            self._call_on_loop(self._loop.call_later, expected - PREPARE_SECONDS, self._prepare, number)
        return ready

    def _call_on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        # A closed loop means that the process is going down and nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    # -- on the event loop

    def _prepare(self, number: int) -> None:
        """Cut the batch that follows batch `number`, unless the engine was faster than expected."""
        with self._lock:
            if self._batches == number and self._engine_is_running and not self._closed:
                self._prepared = self._cut()

    def _deliver(
        self, batch: Batch, outcome: FloatArray | EngineFailure, started: float, finished: float
    ) -> None:
        seconds = finished - started
        failed = isinstance(outcome, EngineFailure)
        self._observer.batch_done(inputs=batch.inputs, tokens=batch.tokens, seconds=seconds, failed=failed)
        if not failed:
            with self._lock:
                self._policy.record(batch.tokens, seconds)
        end = 0
        for part in batch.parts:
            start, end = end, end + len(part.inputs)
            job = self._jobs.get(part.request)
            if job is None or job.future.done():
                continue
            if isinstance(outcome, EngineFailure):
                _fail(job, EngineFailure(outcome.message))
                continue
            job.queue_seconds += (started - job.admitted) * len(part.inputs)
            job.engine_seconds += seconds * len(part.inputs)
            _place(job, part.inputs, outcome[start:end])


def _place(job: _Job, inputs: tuple[int, ...], rows: FloatArray) -> None:
    """Put rows at their places, and answer the request when they were the last."""
    count = len(job.sequences)
    if count == 1:
        job.rows = rows
    else:
        if job.rows is None:
            job.rows = np.empty((count, rows.shape[1]), dtype=np.float32)
        job.rows[list(inputs)] = rows
    job.remaining -= len(inputs)
    if not job.remaining:
        job.future.set_result(Completed(job.rows, job.queue_seconds / count, job.engine_seconds / count))


def _fail(job: _Job, error: EmbedserveError) -> None:
    if not job.future.done():
        job.future.set_exception(error)
