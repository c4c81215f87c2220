"""Dispatches requests, which come in on the event loop, to the executors of the runners.

    submit (loop) -> policy.admit ... an executor's thread: policy.form_batch -> pack -> run -> deliver (loop)

An executor forms a batch the moment its runner has room, so a request that arrives late still makes the next batch.
Where a single serial runner runs a batch that is long enough to be predicted, the loop forms and packs the next one
just before it ends, and the runner finds it ready.

Where the engine takes a batch beside those that run, one more executor runs the requests of clients that have no inputs
running, in express batches. It is ahead of the others, whose threads give way to it and to the event loop from its
first batch on.

One wake-up of the loop a batch and one future a request, whatever the number of inputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from embedserve_runtime.cpu.priority import give_way
from embedserve_runtime.errors import DeadlineExceeded, EmbedserveError, NotReady, RequestError
from embedserve_runtime.forward.batch import get_lengths
from embedserve_runtime.runners.protocol import BatchRunner
from embedserve_runtime.scheduling.batches import (
    AdmittedRequest,
    BatchOutcome,
    BatchRequest,
    CompletedRequest,
    RequestCallback,
    ScheduledBatch,
)
from embedserve_runtime.scheduling.clients import Client, RateLimiter
from embedserve_runtime.scheduling.executors import SerialExecutor, start_executor
from embedserve_runtime.scheduling.outcomes import wait_for_outcome
from embedserve_runtime.scheduling.policy import BatchPlan, Limits, QueueDepth, RequestQueue

Clock = Callable[[], float]

# How long before its expected end the next batch is prepared: some ten times what forming and packing take.
PREPARE_SECONDS = 0.002
# Batches expected to end sooner than this are not worth it.
MIN_PREPARED_SECONDS = 0.010


class Observer(Protocol):
    """Observes the runs of the engine and the requests of clients, on the event loop."""

    def batch_done(self, *, inputs: int, tokens: int, padding: int, seconds: float, failed: bool) -> None: ...

    def client_request(
        self, client: str, *, requests: int, inputs: int, tokens: int, refusal: str | None
    ) -> None:
        """Count a client's request that has come to the queue. requests: 0 for a further part of one. refusal: the
        reason where it was not admitted."""
        ...


class Dispatcher:
    """Owns the queue and the executors.

    runners: of one model, each with an executor of its own; they take batches from one queue. A runner that runs
    several batches at once is listed as often. express_runner: runs express batches beside them; None where no engine
    takes one more.
    """

    def __init__(
        self,
        runners: Sequence[BatchRunner],
        limits: Limits,
        *,
        clock: Clock,
        observer: Observer,
        express_runner: BatchRunner | None = None,
    ) -> None:
        self._runners = len(runners)
        self._clock = clock
        self._observer = observer
        self._queue = RequestQueue(limits)
        self._rates = RateLimiter()
        self._admitted: dict[int, AdmittedRequest] = {}
        self._num_admitted = 0
        self._request_ids = itertools.count(1)
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._waiting_executors = 0
        self._wake_is_due = False
        self._wake_express = threading.Condition(self._lock)
        self._express_is_waiting = False
        self._has_express_batches = False
        self._thread = threading.local()
        self._batches = 0
        self._prepared: ScheduledBatch | None = None
        self._closed: str | None = None
        self.on_batch_failed: Callable[[], None] | None = None
        """Called on the event loop after a batch of which every input failed."""
        self._loop = asyncio.get_running_loop()
        self._executors = [
            start_executor(runner, clock, self._wait_for_batch, self._give, f"engine-{number}")
            for number, runner in enumerate(runners)
        ]
        if express_runner is not None:
            self._executors.append(
                SerialExecutor(
                    express_runner, clock, self._wait_for_express_batch, self._give, "engine-express"
                )
            )
        self._prepares = len(runners) == 1 and isinstance(self._executors[0], SerialExecutor)

    @property
    def queued_inputs(self) -> int:
        return self._queue.queued_inputs

    @property
    def queued_tokens(self) -> int:
        return self._queue.queued_tokens

    @property
    def queue_seconds(self) -> float:
        return self._queue.queue_seconds

    @property
    def limits(self) -> Limits:
        return self._queue.limits

    @property
    def queue_depth(self) -> QueueDepth:
        return self._queue.queue_depth

    def learn_rate(self, tokens_per_second: float) -> None:
        """Take the rate of one executor's engine that was measured before the first request."""
        with self._lock:
            self._queue.tokens_per_second = tokens_per_second * self._runners

    def change_batch_tokens(self, batch_tokens: int) -> None:
        """Form batches by another token budget from now on."""
        with self._lock:
            self._queue.limits = replace(self._queue.limits, batch_tokens=batch_tokens)

    @property
    def is_idle(self) -> bool:
        """Return whether no request waits or runs; may be read on any thread."""
        return not self._admitted

    @property
    def num_admitted(self) -> int:
        """Return how many requests have been admitted until now; may be read on any thread."""
        return self._num_admitted

    def check_room(self, inputs: int, client: Client | None = None) -> None:
        """Refuse a request early. Raises BatchTooLarge, NotReady, Overloaded, RateLimited."""
        if self._closed:
            raise NotReady(self._closed)
        if client is None:
            self._queue.check_room(inputs, 0)
            return
        with self._counted(client, inputs, 0, only_refusals=True):
            self._rates.check(client, 0, self._clock())
            self._queue.check_room(inputs, 0, client.name)

    async def meter_reused(self, client: Client, inputs: int, tokens: int) -> None:
        """Count inputs of a client that were answered by what ran for another request. Raises RateLimited."""
        self.count_reused(client, inputs, tokens)

    def count_reused(self, client: Client, inputs: int, tokens: int) -> None:
        """Count inputs of a client that take no place in the queue. Raises RateLimited."""
        now = self._clock()
        with self._counted(client, inputs, tokens):
            self._rates.check(client, tokens, now)
            self._rates.take(client, tokens, now)

    async def submit(self, request: BatchRequest, deadline: float) -> CompletedRequest:
        """Run a request and wait for its results."""
        return await wait_for_outcome(partial(self.start, request, deadline), self.abort)

    def start(self, request: BatchRequest, deadline: float, settle: RequestCallback) -> int:
        """Queue a request; `settle` is called once with its outcome. Returns the request's id, for `abort`."""
        if self._closed:
            raise NotReady(self._closed)
        admitted = AdmittedRequest(next(self._request_ids), request, settle, self._clock())
        lengths = get_lengths(request.sequences)
        if request.client is None:
            self._admit(admitted, lengths, deadline)
        else:
            self._admit_client(request.client, admitted, lengths, deadline)
        is_wanted = self._waiting_executors or (self._express_is_waiting and request.client is not None)
        if is_wanted and not self._wake_is_due:
            # At the end of this iteration of the loop: what else has come in by then shares the batch.
            self._wake_is_due = True
            self._loop.call_soon(self._wake_an_executor)
        admitted.timer = self._loop.call_later(max(0.0, deadline - self._clock()), self._expire, admitted)
        return admitted.request_id

    def _admit(
        self, admitted: AdmittedRequest, lengths: Sequence[int], deadline: float, client: str | None = None
    ) -> None:
        with self._lock:
            self._queue.admit(admitted.request_id, lengths, deadline, client)
            self._admitted[admitted.request_id] = admitted
            self._num_admitted += 1

    def _admit_client(
        self, client: Client, admitted: AdmittedRequest, lengths: Sequence[int], deadline: float
    ) -> None:
        """Admit a request within the client's rates and its share of the queue.

        What the queue refuses uses up no rate.
        """
        inputs, tokens = admitted.request.count_usage(lengths)
        with self._counted(client, inputs, tokens):
            self._rates.check(client, tokens, admitted.admitted_at)
            self._admit(admitted, lengths, deadline, client.name)
            self._rates.take(client, tokens, admitted.admitted_at)

    @contextlib.contextmanager
    def _counted(
        self, client: Client, inputs: int, tokens: int, *, only_refusals: bool = False
    ) -> Iterator[None]:
        """Tell the observer of a client's request: that it is admitted, or with which reason it is refused inside."""
        requests = 0 if client.is_part else 1
        tell = partial(
            self._observer.client_request, client.name, requests=requests, inputs=inputs, tokens=tokens
        )
        try:
            yield
        except RequestError as error:
            tell(refusal=error.reason)
            raise
        if not only_refusals:
            tell(refusal=None)

    def abort(self, request_id: int) -> None:
        """Take what still waits of a request out of the queue, and call its `settle` no more."""
        if admitted := self._admitted.get(request_id):
            self._remove(admitted)

    def close(self, message: str) -> None:
        """Take no more requests, fail those left as NotReady, and end each executor after its batch."""
        with self._lock:
            self._closed = message
            for request_id in self._admitted:
                self._queue.abort(request_id)
            self._prepared = None
            self._wake.notify_all()
            self._wake_express.notify_all()
        for admitted in [*self._admitted.values()]:
            self._settle(admitted, NotReady(message))

    def join(self, seconds: float) -> None:
        """Wait until the engines have ended their last batches, for at most `seconds`. Call it after `close`."""
        deadline = self._clock() + seconds
        for executor in self._executors:
            executor.join(max(0.0, deadline - self._clock()))

    def _expire(self, admitted: AdmittedRequest) -> None:
        waited = self._clock() - admitted.admitted_at
        self._settle(
            admitted,
            DeadlineExceeded(f"not answered within {waited:.4g} s; the server is busy or the request large"),
        )

    def _settle(self, admitted: AdmittedRequest, outcome: CompletedRequest | EmbedserveError) -> None:
        self._remove(admitted)
        admitted.settle(outcome)

    def _remove(self, admitted: AdmittedRequest) -> None:
        if admitted.timer:
            admitted.timer.cancel()
        with self._lock:
            del self._admitted[admitted.request_id]
            if admitted.remaining:  # not answered, so that some of it may still wait
                self._queue.abort(admitted.request_id)

    def _form_batch(self) -> ScheduledBatch | None:
        """Form the next batch. The caller holds the lock."""
        plan = self._queue.form_batch(self._clock())
        return None if plan is None else ScheduledBatch(self._find_admitted(plan), plan)

    def _find_admitted(self, plan: BatchPlan) -> tuple[tuple[AdmittedRequest, Sequence[int]], ...]:
        return tuple((self._admitted[part.request_id], part.inputs) for part in plan.parts)

    # -- on threads of the executors

    def _wait_for_batch(self) -> ScheduledBatch | None:
        if self._has_express_batches and not hasattr(self._thread, "gives_way"):
            self._thread.gives_way = True
            give_way()
        with self._lock:
            while True:
                if self._closed:
                    return None
                batch, self._prepared = self._prepared or self._form_batch(), None
                if batch:
                    break
                self._waiting_executors += 1
                self._wake.wait()
                self._waiting_executors -= 1
            self._batches += 1
            number, rate = self._batches, self._queue.tokens_per_second
            if self._waiting_executors and self._queue.queued_inputs:
                self._wake.notify()
            elif not self._waiting_executors:
                self._wake_express_executor()
        if self._prepares and rate:
            expected = batch.tokens / rate
            if expected >= MIN_PREPARED_SECONDS:
                self._call_on_loop(self._loop.call_later, expected - PREPARE_SECONDS, self._prepare, number)
        return batch

    def _wait_for_express_batch(self) -> ScheduledBatch | None:
        with self._lock:
            while not self._closed:
                # Who finds an executor free needs no other.
                plan = None if self._waiting_executors else self._queue.form_express_batch(self._clock())
                if plan:
                    self._has_express_batches = True
                    return ScheduledBatch(self._find_admitted(plan), plan, is_express=True)
                self._express_is_waiting = True
                self._wake_express.wait()
                self._express_is_waiting = False
            return None

    def _give(self, batch: ScheduledBatch, outcome: BatchOutcome) -> None:
        with self._lock:
            self._queue.end_batch(batch.plan.clients)
        self._call_on_loop(self._deliver, batch, outcome)

    def _call_on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        # A closed loop means that the process is going down and nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    # -- on the event loop

    def _wake_an_executor(self) -> None:
        self._wake_is_due = False
        with self._lock:
            if self._waiting_executors:
                self._wake.notify()
            else:
                self._wake_express_executor()

    def _wake_express_executor(self) -> None:
        """Wake the executor of express batches if there is work for it. The caller holds the lock."""
        if self._express_is_waiting and self._queue.has_idle_client_requests:
            self._wake_express.notify()

    def _prepare(self, number: int) -> None:
        """Form and pack the batch that follows batch `number`, unless the engine was faster than expected."""
        with self._lock:
            if self._batches != number or self._waiting_executors or self._closed:
                return
            self._prepared = batch = self._form_batch()
        if batch:
            _ = batch.packed

    def _deliver(self, batch: ScheduledBatch, outcome: BatchOutcome) -> None:
        for run in outcome.runs:
            self._observer.batch_done(
                inputs=run.inputs,
                tokens=run.tokens,
                padding=run.padding,
                seconds=run.seconds,
                failed=run.failed,
            )
        with self._lock:
            for run in () if batch.is_express else outcome.runs:
                if not run.failed:
                    self._queue.record(run.tokens * self._runners, run.seconds)
        if len(outcome.failed) == batch.inputs and self.on_batch_failed is not None:
            self.on_batch_failed()
        end = 0
        for admitted, inputs in batch.parts:
            start, end = end, end + len(inputs)
            if admitted.request_id not in self._admitted:
                continue
            answer = admitted.take(inputs, outcome, start)
            if answer is not None:
                self._settle(admitted, answer)
