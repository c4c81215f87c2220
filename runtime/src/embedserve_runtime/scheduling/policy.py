"""The batching rules: what is admitted, and which inputs form the next batch.

Clients wait in a ring, and the requests of each in a ring of their own. `form_batch` goes round: it takes a quantum of
tokens (at least one input) from the front request of the front client, then moves both to the end of their rings, until
the token budget is full. So a request with 10,000 inputs gives one quantum where a single query gives one, and a client
with 10,000 requests gives one where one with a single request gives one (deficit round robin, Shreedhar and Varghese
1995, without the deficits: an input cannot be split). What does not fit is passed over for what does, and stays
where it is. Requests of nobody in particular are those of one client.

How long anyone waits is bounded: the request in front always gets into the batch, whatever its length, and
leaves the front. A request with n requests before it is in one of the next n + 1 batches.

No client fills the queue: where clients are told apart, each may hold as much as is still free, which is half of the
queue for one and a third for each of two (dynamic thresholds, Choudhury and Hahne 1998). There is always room for one
more.

A client that sends little does not wait for the batches of one that sends much: where the engine can run a batch beside
those that run, `form_sparse_batch` takes what all clients have that run nothing, if it is less than a batch (sparse
flows of FQ-CoDel, RFC 8290). They are few by definition, and who sends more is served by `form_batch` alone.

Inside a request the longest inputs go first, so that the sequences of one batch have similar lengths; a
request is answered when its last input is done, so nobody waits for that order.

Pure: time comes in as a number, nothing here sleeps, logs, locks or measures.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from msgspec import Struct

from embedserve_runtime.errors import BatchTooLarge, Overloaded

# A quantum is this part of the budget: small enough that many requests share a batch, large enough that forming one is
# cheap.
QUANTA_PER_BATCH = 8
# Requests passed over before `form_batch` gives up filling the rest of the budget.
LOOK_AHEAD = 64
# How long the whole engine needs for a batch where clients are told apart: a client with one short text waits for the
# rest of the batch that runs and then for its own. Of two batches at once each takes twice as long. On two cores MiniLM
# has 0.8 of its throughput with it (docs/engineering/scheduling.md).
MAX_SHARED_BATCH_SECONDS = 0.010
# Weight of the newest batch in the measured rate.
RATE_WEIGHT = 0.2
# Before anything is measured, and as the shortest and longest wait that a client is told.
MIN_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the queue and of batches.

    batch_tokens: budget of one forward. queue_tokens, queue_inputs: what may wait.
    """

    batch_tokens: int
    queue_tokens: int
    queue_inputs: int


class BatchPart(Struct, frozen=True):
    """Inputs of one request, by their index in it; a range when they are all of its inputs."""

    request_id: int
    inputs: Sequence[int]


class BatchPlan(Struct, frozen=True):
    """Which inputs of which requests form a batch. tokens, inputs: how many in all. clients: of these requests, each
    once."""

    parts: tuple[BatchPart, ...]
    tokens: int
    inputs: int
    clients: tuple[str | None, ...] = ()


class QueueDepth(Struct, frozen=True):
    """The depth of the queue and the measured rate: enough to say whether there is room for more."""

    inputs: int
    tokens: int
    tokens_per_second: float | None

    def check_room(self, limits: Limits, inputs: int, tokens: int) -> None:
        """Raise BatchTooLarge for what can never be admitted, Overloaded for what cannot be admitted now."""
        if inputs > limits.queue_inputs:
            raise BatchTooLarge(
                f"{inputs} inputs in one request; the queue takes {limits.queue_inputs} in all"
            )
        if tokens > limits.queue_tokens:
            raise BatchTooLarge(
                f"{tokens} tokens in one request; the queue takes {limits.queue_tokens} in all"
            )
        excess_inputs = self.inputs + inputs - limits.queue_inputs
        excess_tokens = self.tokens + tokens - limits.queue_tokens
        if excess_inputs > 0 or excess_tokens > 0:
            raise Overloaded(
                f"the queue is full: {self.inputs} inputs with {self.tokens} tokens wait",
                self.compute_retry_seconds(excess_inputs, excess_tokens),
            )

    def compute_retry_seconds(self, inputs: int, tokens: int) -> float:
        """Return the seconds until so much has left the queue at the measured rate, within the bounds above."""
        if not self.tokens_per_second:
            return MIN_RETRY_SECONDS
        mean_tokens = self.tokens / self.inputs if self.inputs else 0.0
        seconds = max(tokens, inputs * mean_tokens) / self.tokens_per_second
        return float(math.ceil(min(max(seconds, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)))


class _QueuedRequest:
    """The inputs of one request that wait: in the order they came until some have been taken, then the shortest
    first."""

    __slots__ = ("deadline", "lengths", "order", "request_id", "tokens")
    order: list[int] | None

    def __init__(self, request_id: int, lengths: Sequence[int], tokens: int, deadline: float) -> None:
        """tokens: of all inputs."""
        self.request_id = request_id
        self.deadline = deadline
        self.tokens = tokens
        self.order, self.lengths = None, [*lengths]

    def take_inputs(self, room: int, quantum: int, *, any_length: bool) -> tuple[Sequence[int], int]:
        """Take the longest inputs that fit, about a quantum of tokens; with `any_length` the first always fits.

        A request that fits as a whole is taken as it came.
        """
        tokens = self.tokens
        if self.order is None and (
            tokens <= min(room, quantum) or (len(self.lengths) == 1 and (any_length or tokens <= room))
        ):
            everything = range(len(self.lengths))
            self.tokens = 0
            self.lengths.clear()
            return everything, tokens
        taken: list[int] = []
        tokens = 0
        order = self._sorted()
        while self.lengths and tokens < quantum:
            if any_length and not taken:
                index = len(self.lengths) - 1
            else:
                index = bisect_right(self.lengths, room - tokens) - 1
                if index < 0:
                    break
            tokens += self.lengths.pop(index)
            taken.append(order.pop(index))
        self.tokens -= tokens
        return taken, tokens

    def _sorted(self) -> list[int]:
        if self.order is None:
            lengths = self.lengths
            self.order = sorted(range(len(lengths)), key=lengths.__getitem__)
            self.lengths = [lengths[index] for index in self.order]
        return self.order


class _ClientQueue:
    """The requests of one client that wait. tokens, inputs: of all of them."""

    __slots__ = ("inputs", "ring", "tokens")

    def __init__(self) -> None:
        self.ring: OrderedDict[int, _QueuedRequest] = OrderedDict()
        self.tokens = 0
        self.inputs = 0

    def add(self, waiting: _QueuedRequest) -> None:
        self.ring[waiting.request_id] = waiting
        self.tokens += waiting.tokens
        self.inputs += len(waiting.lengths)

    def subtract(self, tokens: int, inputs: int) -> None:
        self.tokens -= tokens
        self.inputs -= inputs


class RequestQueue:
    """Holds the requests that wait, and forms batches of them by the rules of this module.

    Not thread-safe: the caller holds one lock around every call.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.queued_tokens = 0
        self.queued_inputs = 0
        self.tokens_per_second: float | None = None
        self._quantum = max(1, limits.batch_tokens // QUANTA_PER_BATCH)
        self._clients: OrderedDict[str | None, _ClientQueue] = OrderedDict()
        self._client_of: dict[int, str | None] = {}
        self._running: Counter[str | None] = Counter()

    @property
    def queue_seconds(self) -> float:
        """The time that the engine needs for the queue, at the measured rate."""
        return self.queued_tokens / self.tokens_per_second if self.tokens_per_second else 0.0

    @property
    def queue_depth(self) -> QueueDepth:
        return QueueDepth(self.queued_inputs, self.queued_tokens, self.tokens_per_second)

    def check_room(self, inputs: int, tokens: int, client: str | None = None) -> None:
        """Raise BatchTooLarge for what can never be admitted, Overloaded for what cannot be admitted now.

        client: whose request it is; None where clients are not told apart.
        """
        limits = self.limits
        if (
            self.queued_inputs + inputs > limits.queue_inputs
            or self.queued_tokens + tokens > limits.queue_tokens
        ):
            self.queue_depth.check_room(limits, inputs, tokens)
        if client is not None and (queue := self._clients.get(client)):
            self._check_share(client, queue, inputs, tokens)

    def admit(
        self, request_id: int, lengths: Sequence[int], deadline: float, client: str | None = None
    ) -> None:
        """Queue the inputs of a request, given their token counts (each at least 1). Raises as `check_room`.

        client: whose request it is; None where clients are not told apart.
        """
        tokens = sum(lengths)
        self.check_room(len(lengths), tokens, client)
        queue = self._clients.get(client)
        if queue is None:
            queue = self._clients[client] = _ClientQueue()
        queue.add(_QueuedRequest(request_id, lengths, tokens, deadline))
        self._client_of[request_id] = client
        self.queued_tokens += tokens
        self.queued_inputs += len(lengths)

    def _check_share(self, client: str, queue: _ClientQueue, inputs: int, tokens: int) -> None:
        """Raise Overloaded where the client would hold more than what is free for all others."""
        excess_inputs = queue.inputs + inputs - (self.limits.queue_inputs - self.queued_inputs)
        excess_tokens = queue.tokens + tokens - (self.limits.queue_tokens - self.queued_tokens)
        if excess_inputs > 0 or excess_tokens > 0:
            raise Overloaded(
                f"client {client!r} has its share of the queue: {queue.inputs} inputs with {queue.tokens} tokens wait",
                self.queue_depth.compute_retry_seconds(excess_inputs, excess_tokens),
            )

    def abort(self, request_id: int) -> None:
        """Drop the inputs of a request that still wait; nothing happens when none do."""
        if request_id not in self._client_of:
            return
        client = self._client_of.pop(request_id)
        queue = self._clients[client]
        self._subtract(queue, queue.ring.pop(request_id))
        if not queue.ring:
            del self._clients[client]

    def form_batch(self, now: float) -> BatchPlan | None:
        """Form the next batch; None when nothing waits. Requests whose deadline has passed are dropped."""
        room = self._compute_budget()
        taken: dict[int, Sequence[int]] = {}
        passed: list[tuple[str | None, _ClientQueue, _QueuedRequest]] = []
        served: set[str | None] = set()
        tokens = inputs = 0
        while self._clients and tokens < room and len(passed) < LOOK_AHEAD:
            client, queue = self._clients.popitem(last=False)
            request_id, waiting = queue.ring.popitem(last=False)
            if waiting.deadline <= now:
                del self._client_of[request_id]
                self._subtract(queue, waiting)
                if queue.ring:
                    self._clients[client] = queue
                    self._clients.move_to_end(client, last=False)
                continue
            # Who waits alone shares with nobody.
            quantum = self._quantum if self._clients or queue.ring or passed else room
            chosen, chosen_tokens = waiting.take_inputs(room - tokens, quantum, any_length=not taken)
            if not chosen:
                passed.append((client, queue, waiting))
            else:
                earlier = taken.get(request_id)
                taken[request_id] = [*earlier, *chosen] if earlier else chosen
                tokens += chosen_tokens
                inputs += len(chosen)
                queue.subtract(chosen_tokens, len(chosen))
                served.add(client)
                if waiting.lengths:
                    queue.ring[request_id] = waiting
                else:
                    del self._client_of[request_id]
            if queue.ring:
                self._clients[client] = queue
        for client, queue, waiting in reversed(passed):
            queue.ring[waiting.request_id] = waiting
            queue.ring.move_to_end(waiting.request_id, last=False)
            self._clients[client] = queue
            if client not in served:
                self._clients.move_to_end(client, last=False)
        self.queued_tokens -= tokens
        self.queued_inputs -= inputs
        return self._start(taken, tokens, inputs, served)

    def form_sparse_batch(self, now: float) -> BatchPlan | None:
        """Form a batch of all that waits of clients that run nothing; None where there are none.

        It is no larger than any other batch; a client that has more waiting takes no part, nor do requests whose
        clients are not told apart. Requests whose deadline has passed stay for `form_batch` to drop.
        """
        room = self._compute_budget()
        taken: dict[int, Sequence[int]] = {}
        chosen: list[str | None] = []
        tokens = inputs = 0
        for client, queue in islice(self._clients.items(), LOOK_AHEAD):
            if not self._is_sparse(client) or tokens + queue.tokens > room:
                continue
            if any(waiting.deadline <= now for waiting in queue.ring.values()):
                continue
            for request_id, waiting in queue.ring.items():
                # In the order in which `take_inputs` may have left them.
                taken[request_id] = waiting.take_inputs(waiting.tokens, waiting.tokens, any_length=False)[0]
                del self._client_of[request_id]
            tokens += queue.tokens
            inputs += queue.inputs
            chosen.append(client)
        for client in chosen:
            del self._clients[client]
        self.queued_tokens -= tokens
        self.queued_inputs -= inputs
        return self._start(taken, tokens, inputs, chosen)

    @property
    def has_sparse_clients(self) -> bool:
        """Whether `form_sparse_batch` may find something."""
        return any(self._is_sparse(client) for client in islice(self._clients, LOOK_AHEAD))

    def _is_sparse(self, client: str | None) -> bool:
        return client is not None and not self._running[client]

    def _start(
        self, taken: Mapping[int, Sequence[int]], tokens: int, inputs: int, clients: Iterable[str | None]
    ) -> BatchPlan | None:
        """Return the plan of what was taken out of the queue, and count its clients as running."""
        if not taken:
            return None
        parts = tuple(BatchPart(request_id, indices) for request_id, indices in taken.items())
        plan = BatchPlan(parts, tokens, inputs, tuple(clients))
        self._running.update(plan.clients)
        return plan

    def end_batch(self, clients: Iterable[str | None]) -> None:
        """Count a batch of these clients as run."""
        for client in clients:
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]

    def _compute_budget(self) -> int:
        """Return the tokens of the next batch: fewer where clients are told apart, as nobody gets in while it runs."""
        budget = self.limits.batch_tokens
        if self.tokens_per_second is None or None in self._clients:
            return budget
        return min(budget, max(self._quantum, int(self.tokens_per_second * MAX_SHARED_BATCH_SECONDS)))

    def record(self, tokens: int, seconds: float) -> None:
        """Learn the engine's rate from a batch that has run."""
        if seconds <= 0:
            return
        rate = tokens / seconds
        known = self.tokens_per_second
        self.tokens_per_second = rate if known is None else known + RATE_WEIGHT * (rate - known)

    def _subtract(self, queue: _ClientQueue, waiting: _QueuedRequest) -> None:
        queue.subtract(waiting.tokens, len(waiting.lengths))
        self.queued_tokens -= waiting.tokens
        self.queued_inputs -= len(waiting.lengths)
