"""The shell around the policy: requests come in on the event loop, batches run on the engine's own thread.

    submit (loop) -> policy.admit ... engine's thread: policy.cut -> pack -> run -> deliver (loop)

The engine's thread cuts for itself the moment it is free, so a request that arrives late still makes the next
batch. When the running batch is long enough to be predicted, the loop cuts and packs the next one just before it
ends, and the engine finds it ready.

One wake-up of the loop a batch and one future a request, whatever the number of inputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Protocol

from embedserve_runtime.errors import DeadlineExceeded, EmbedserveError, NotReady
from embedserve_runtime.scheduling.deadlines import Deadlines
from embedserve_runtime.scheduling.policy import Backlog, Limits, Policy
from embedserve_runtime.scheduling.work import Completed, Cut, Job, Order, Outcome, Runs, Settle, run_cut

Clock = Callable[[], float]

# How long before its expected end the next batch is prepared: some ten times what cutting and packing take.
PREPARE_SECONDS = 0.002
# Batches expected to end sooner than this are not worth it.
LEAST_PREPARED_SECONDS = 0.010


class Observer(Protocol):
    """Told, on the event loop, about every run of the engine."""

    def batch_done(self, *, inputs: int, tokens: int, padding: int, seconds: float, failed: bool) -> None: ...


class Dispatcher:
    """Owns the queue and the engine's thread."""

    def __init__(self, runs: Runs, limits: Limits, *, clock: Clock, observer: Observer) -> None:
        self._runs = runs
        self._clock = clock
        self._observer = observer
        self._policy = Policy(limits)
        self._jobs: dict[int, Job] = {}
        self._deadlines = Deadlines(clock, self._expire)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._engine_is_running = False
        self._wake_is_due = False
        self._batches = 0
        self._prepared: Cut | None = None
        self._closed: str | None = None
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
    def open_requests(self) -> int:
        """Admitted and not answered yet."""
        return len(self._jobs)

    @property
    def limits(self) -> Limits:
        return self._policy.limits

    @property
    def backlog(self) -> Backlog:
        return self._policy.backlog

    def learn_rate(self, tokens_per_second: float) -> None:
        """Take a rate that was measured before the first request."""
        with self._lock:
            self._policy.tokens_per_second = tokens_per_second

    def check_room(self, inputs: int) -> None:
        """As `Submits` has it."""
        if self._closed:
            raise NotReady(self._closed)
        self._policy.check_room(inputs, 0)

    async def submit(self, order: Order, deadline: float) -> Completed:
        """As `Submits` has it."""
        future: asyncio.Future[Completed] = self._loop.create_future()

        def settle(outcome: Completed | EmbedserveError) -> None:
            if future.done():  # cancelled, and its caller has not had a turn yet
                return
            if isinstance(outcome, Completed):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

        number = self.start(order, deadline, settle)
        try:
            return await future
        finally:
            self.withdraw(number)

    def start(self, order: Order, deadline: float, settle: Settle) -> int:
        """Admit a request; `settle` is called once with its outcome, unless it is withdrawn before.

        Returns its number. Raises Overloaded, BatchTooLarge, NotReady.
        """
        if self._closed:
            raise NotReady(self._closed)
        job = Job(next(self._numbers), order, settle, self._clock())
        lengths = [len(sequence) for sequence in order.sequences]
        with self._lock:
            self._policy.admit(job.number, lengths, deadline)
            self._jobs[job.number] = job
        if not self._engine_is_running and not self._wake_is_due:
            # At the end of this turn of the loop: what else has come in by then shares the batch.
            self._wake_is_due = True
            self._loop.call_soon(self._wake_engine)
        self._deadlines.add(job.number, deadline)
        return job.number

    def withdraw(self, number: int) -> None:
        """Take what still waits of a request out of the queue and answer it no more; answered ones are not known."""
        if job := self._jobs.get(number):
            self._forget(job)

    def close(self, message: str) -> None:
        """Take no more requests, fail those left as NotReady, and end the engine's thread after its batch."""
        with self._lock:
            self._closed = message
            for number in self._jobs:
                self._policy.cancel(number)
            self._prepared = None
            self._wake.notify()
        for job in [*self._jobs.values()]:
            self._settle(job, NotReady(message))
        self._deadlines.close()

    def join(self, seconds: float) -> None:
        """After `close`: wait for the engine to come out of its last batch, so long at most."""
        self._thread.join(seconds)

    def _expire(self, number: int) -> None:
        job = self._jobs[number]
        waited = self._clock() - job.admitted
        self._settle(
            job,
            DeadlineExceeded(f"not answered within {waited:.1f} s; the server is busy or the request large"),
        )

    def _settle(self, job: Job, outcome: Completed | EmbedserveError) -> None:
        self._forget(job)
        job.settle(outcome)

    def _forget(self, job: Job) -> None:
        self._deadlines.discard(job.number)
        with self._lock:
            del self._jobs[job.number]
            if job.remaining:  # not answered, so that some of it may still wait
                self._policy.cancel(job.number)

    def _cut(self) -> Cut | None:
        """The lock is held already."""
        batch = self._policy.cut(self._clock())
        if batch is None:
            return None
        parts = tuple((self._jobs[part.request], part.inputs) for part in batch.parts)
        return Cut(parts, batch.tokens, batch.inputs)

    # -- on the engine's thread

    def _engine_loop(self) -> None:
        while cut := self._wait_for_batch():
            outcome = run_cut(cut, self._runs, self._clock)
            self._call_on_loop(self._deliver, cut, outcome)

    def _wait_for_batch(self) -> Cut | None:
        with self._lock:
            self._engine_is_running = False
            while True:
                if self._closed:
                    return None
                cut, self._prepared = self._prepared or self._cut(), None
                if cut:
                    break
                self._wake.wait()
            self._engine_is_running = True
            self._batches += 1
            number, rate = self._batches, self._policy.tokens_per_second
        expected = cut.tokens / rate if rate else 0.0
        if expected >= LEAST_PREPARED_SECONDS:
            self._call_on_loop(self._loop.call_later, expected - PREPARE_SECONDS, self._prepare, number)
        return cut

    def _call_on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        # A closed loop means that the process is going down and nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    # -- on the event loop

    def _wake_engine(self) -> None:
        self._wake_is_due = False
        with self._lock:
            self._wake.notify()

    def _prepare(self, number: int) -> None:
        """Cut and pack the batch that follows batch `number`, unless the engine was faster than expected."""
        with self._lock:
            if self._batches != number or not self._engine_is_running or self._closed:
                return
            self._prepared = cut = self._cut()
        if cut:
            _ = cut.packed

    def _deliver(self, cut: Cut, outcome: Outcome) -> None:
        for run in outcome.runs:
            self._observer.batch_done(
                inputs=run.inputs,
                tokens=run.tokens,
                padding=run.padding,
                seconds=run.seconds,
                failed=run.failed,
            )
        with self._lock:
            for run in outcome.runs:
                if not run.failed:
                    self._policy.record(run.tokens, run.seconds)
        end = 0
        for job, inputs in cut.parts:
            start, end = end, end + len(inputs)
            if job.number not in self._jobs:
                continue
            answer = job.take(inputs, outcome, start)
            if answer is not None:
                self._settle(job, answer)
