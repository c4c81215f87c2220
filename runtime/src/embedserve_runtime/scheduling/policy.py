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
those that run, `form_express_batch` takes the requests of all clients that have no inputs running, as far as they fit
into one batch (RFC 8290 calls such flows of FQ-CoDel sparse). A client that sends more is served by `form_batch` alone.

Inside a request the longest inputs go first, so that the sequences of one batch have similar lengths; a
request is answered when its last input is done, so nobody waits for that order.

Pure: time comes in as a number, nothing here sleeps, logs, locks or measures.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from msgspec import Struct

from embedserve_runtime.errors import BatchTooLarge, Overloaded
from embedserve_runtime.scheduling.queued_requests import ClientQueue, QueuedRequest

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
    """The inputs that form a batch, by request.

    tokens, inputs: how many in all. clients: those of the requests, each once.
    """

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


class _BatchBuilder:
    """Collects the inputs that are taken out of the queue for one batch.

    room: tokens of the budget that are left, below 0 where one input is longer than the budget. clients: those of the
    inputs, in the order in which they were first taken.
    """

    __slots__ = ("clients", "inputs", "parts", "room", "tokens")

    def __init__(self, budget: int) -> None:
        self.room = budget
        self.tokens = 0
        self.inputs = 0
        self.parts: dict[int, Sequence[int]] = {}
        self.clients: dict[str | None, None] = {}

    def add(self, client: str | None, request_id: int, inputs: Sequence[int], tokens: int) -> None:
        """Add inputs of a request, by their index in it, and the tokens that they have together."""
        earlier = self.parts.get(request_id)
        self.parts[request_id] = [*earlier, *inputs] if earlier else inputs
        self.clients[client] = None
        self.room -= tokens
        self.tokens += tokens
        self.inputs += len(inputs)

    def build(self) -> BatchPlan | None:
        """Build the plan of the batch; None where nothing was added."""
        if not self.parts:
            return None
        parts = tuple(BatchPart(request_id, inputs) for request_id, inputs in self.parts.items())
        return BatchPlan(parts, self.tokens, self.inputs, tuple(self.clients))


class RequestQueue:
    """A queue of the requests that wait, which forms batches of them by the rules of this module.

    Not thread-safe: the caller holds one lock around every call.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.queued_tokens = 0
        self.queued_inputs = 0
        self.tokens_per_second: float | None = None
        self._clients: OrderedDict[str | None, ClientQueue] = OrderedDict()
        self._client_of: dict[int, str | None] = {}
        self._running: Counter[str | None] = Counter()

    @property
    def _quantum(self) -> int:
        return max(1, self.limits.batch_tokens // QUANTA_PER_BATCH)

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
            queue = self._clients[client] = ClientQueue(client)
        queue.add(QueuedRequest(request_id, lengths, tokens, deadline))
        self._client_of[request_id] = client
        self.queued_tokens += tokens
        self.queued_inputs += len(lengths)

    def _check_share(self, client: str, queue: ClientQueue, inputs: int, tokens: int) -> None:
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
        budget = self._compute_budget()
        batch = _BatchBuilder(budget)
        skipped: list[tuple[ClientQueue, QueuedRequest]] = []
        while self._clients and batch.room > 0 and len(skipped) < LOOK_AHEAD:
            _, queue = self._clients.popitem(last=False)
            _, request = queue.ring.popitem(last=False)
            if request.deadline <= now:
                self._drop_expired(queue, request)
                continue
            # A request that waits alone shares the batch with nobody.
            is_alone = not (self._clients or queue.ring or skipped)
            if not self._take_inputs(queue, request, batch, budget if is_alone else self._quantum):
                skipped.append((queue, request))
            if queue.ring:
                self._clients[queue.client] = queue
        self._put_back(skipped, batch)
        return self._start(batch)

    def _drop_expired(self, queue: ClientQueue, request: QueuedRequest) -> None:
        """Forget a request, popped from its ring as its client was; the client stays in front."""
        del self._client_of[request.request_id]
        self._subtract(queue, request)
        if queue.ring:
            self._clients[queue.client] = queue
            self._clients.move_to_end(queue.client, last=False)

    def _take_inputs(
        self, queue: ClientQueue, request: QueuedRequest, batch: _BatchBuilder, quantum: int
    ) -> bool:
        """Take about a quantum of tokens of a popped request into the batch; return whether any input fitted.

        Inputs that are left go behind the client's other requests. The first input of a batch always fits.
        """
        inputs, tokens = request.take_inputs(batch.room, quantum, any_length=not batch.parts)
        if not inputs:
            return False
        batch.add(queue.client, request.request_id, inputs, tokens)
        queue.subtract(tokens, len(inputs))
        if request.lengths:
            queue.ring[request.request_id] = request
        else:
            del self._client_of[request.request_id]
        return True

    def _put_back(self, skipped: Sequence[tuple[ClientQueue, QueuedRequest]], batch: _BatchBuilder) -> None:
        """Put the requests that were passed over in front again, in their order, and their clients unless served."""
        for queue, request in reversed(skipped):
            queue.ring[request.request_id] = request
            queue.ring.move_to_end(request.request_id, last=False)
            self._clients[queue.client] = queue
            if queue.client not in batch.clients:
                self._clients.move_to_end(queue.client, last=False)

    def form_express_batch(self, now: float) -> BatchPlan | None:
        """Form a batch of all requests of clients that have no inputs running; None where there are none.

        It is no larger than any other batch; a client that has more waiting takes no part, nor do requests whose
        clients are not told apart. Requests whose deadline has passed stay for `form_batch` to drop.
        """
        batch = _BatchBuilder(self._compute_budget())
        for queue in islice(self._clients.values(), LOOK_AHEAD):
            if self._is_idle(queue.client) and queue.tokens <= batch.room and not queue.has_expired(now):
                self._take_all(queue, batch)
        for client in batch.clients:
            del self._clients[client]
        return self._start(batch)

    def _take_all(self, queue: ClientQueue, batch: _BatchBuilder) -> None:
        """Take all inputs of a client into the batch; the caller removes the client from the ring."""
        for request in queue.ring.values():
            # In the order in which `take_inputs` may have left them.
            inputs, tokens = request.take_inputs(request.tokens, request.tokens, any_length=False)
            batch.add(queue.client, request.request_id, inputs, tokens)
            del self._client_of[request.request_id]

    @property
    def has_idle_client_requests(self) -> bool:
        """Return whether `form_express_batch` may find a client's requests to run."""
        return any(self._is_idle(client) for client in islice(self._clients, LOOK_AHEAD))

    def _is_idle(self, client: str | None) -> bool:
        return client is not None and not self._running[client]

    def _start(self, batch: _BatchBuilder) -> BatchPlan | None:
        """Return the plan of what was taken out of the queue, and count its clients as running."""
        self.queued_tokens -= batch.tokens
        self.queued_inputs -= batch.inputs
        plan = batch.build()
        if plan is not None:
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
        mean = self.tokens_per_second
        self.tokens_per_second = rate if mean is None else mean + RATE_WEIGHT * (rate - mean)

    def _subtract(self, queue: ClientQueue, request: QueuedRequest) -> None:
        """Subtract what waits of a request from what waits of its client and of all clients."""
        queue.subtract(request.tokens, len(request.lengths))
        self.queued_tokens -= request.tokens
        self.queued_inputs -= len(request.lengths)
