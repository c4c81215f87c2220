"""Batches the small queries of one iteration of the event loop: one call of the tokenizer, one pass over their rows.

So the fixed cost of a library call is paid once for all of them. In the queue each is a request of its own, and each
gets the answer or the error that it would get alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from embedserve_runtime.errors import EmbedserveError, NotFinite
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import Tokens, get_lengths
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.scheduling.batches import BatchRequest, CompletedRequest, RequestDispatcher
from embedserve_runtime.scheduling.outcomes import wait_for_outcome
from embedserve_runtime.service.current_client import begin_part
from embedserve_runtime.service.postprocessing import NO_ROWS, postprocess_dense
from embedserve_runtime.service.types import EmbedQuery, EmbedResult, RequestUsage, Timings
from embedserve_runtime.tokenizing import TruncationRules
from embedserve_runtime.tokenizing.backend import MAX_SEQUENTIAL_CHARACTERS
from embedserve_runtime.tokenizing.input_encoders import InputEncoder

# For one query: some 0.2 ms of tokenizing, which costs less than the hop to a thread.
MAX_CHARACTERS = 512
MAX_INPUTS = 16
# For all queries of one iteration: some 0.8 ms of tokenizing, during which the loop waits; the others follow in the
# next iteration. It is what the tokenizer takes without its thread pool: waiting for a thread of that stops the loop
# for as long as the engine has all cores, tens of milliseconds on a busy machine.
MAX_ITERATION_CHARACTERS = MAX_SEQUENTIAL_CHARACTERS

# Called once with the outcome; anything but an EmbedserveError is a bug.
EmbedCallback = Callable[[EmbedResult | Exception], None]


class InputRendering(NamedTuple):
    """The options of a request that decide the tokens of its texts. Texts with the same rendering go
    through the tokenizer in one call."""

    encoder: InputEncoder
    prompt: str
    rules: TruncationRules


def is_small(query: EmbedQuery) -> bool:
    """Return whether a query is batched with others: it has a few short inputs, and asks for vectors only."""
    return (
        query.outputs is OutputKind.DENSE
        and query.spans is None
        and query.pool_factor is None
        and len(query.inputs) <= MAX_INPUTS
        and sum(map(len, query.inputs)) + len(query.prompt or "") <= MAX_CHARACTERS
    )


class PendingRequest:
    """A query that is being answered.

    request_id: in the queue, once it is there. characters: the total length of its inputs.

    on_outcome: called once with the result or the error.
    """

    __slots__ = (
        "characters",
        "client",
        "completed",
        "deadline",
        "is_settled",
        "on_outcome",
        "query",
        "rendering",
        "request_id",
        "sequences",
        "started",
        "tokenized",
    )
    sequences: Sequence[Tokens]
    tokenized: float
    completed: CompletedRequest

    def __init__(
        self,
        query: EmbedQuery,
        rendering: InputRendering,
        on_outcome: EmbedCallback,
        *,
        started: float,
        deadline: float,
    ) -> None:
        self.query = query
        self.client = begin_part()
        self.rendering = rendering
        self.characters = sum(map(len, query.inputs))
        self.on_outcome = on_outcome
        self.started = started
        self.deadline = deadline
        self.request_id: int | None = None
        self.is_settled = False

    def settle(self, outcome: EmbedResult | Exception) -> None:
        if not self.is_settled:
            self.is_settled = True
            self.on_outcome(outcome)


class MicroBatcher:
    """Batches small queries. It belongs to one event loop."""

    def __init__(self, card: ModelCard, dispatcher: RequestDispatcher, clock: Callable[[], float]) -> None:
        self._card = card
        self._dispatcher = dispatcher
        self._clock = clock
        self._pending: deque[PendingRequest] = deque()
        self._completed: list[PendingRequest] = []
        self._is_submit_scheduled = False

    async def embed(
        self, query: EmbedQuery, rendering: InputRendering, started: float, deadline: float
    ) -> EmbedResult:
        """Embed the inputs of a query. started, deadline: times of the clock. Raises any RequestError."""
        return await wait_for_outcome(
            lambda settle: self._start(query, rendering, settle, started, deadline), self._abort
        )

    def _start(
        self,
        query: EmbedQuery,
        rendering: InputRendering,
        on_outcome: EmbedCallback,
        started: float,
        deadline: float,
    ) -> PendingRequest:
        request = PendingRequest(query, rendering, on_outcome, started=started, deadline=deadline)
        self._pending.append(request)
        if not self._is_submit_scheduled:
            self._is_submit_scheduled = True
            asyncio.get_running_loop().call_soon(self._submit_pending)
        return request

    def _abort(self, request: PendingRequest) -> None:
        """Abort a request for which nobody waits any more."""
        request.is_settled = True
        if request.request_id is not None:
            self._dispatcher.abort(request.request_id)

    # -- to the queue

    def _submit_pending(self) -> None:
        groups: dict[InputRendering, list[PendingRequest]] = {}
        characters = 0
        while self._pending:
            request = self._pending[0]
            characters += request.characters + len(request.rendering.prompt) * len(request.query.inputs)
            if characters > MAX_ITERATION_CHARACTERS and groups:
                break
            self._pending.popleft()
            if not request.is_settled:
                groups.setdefault(request.rendering, []).append(request)
        for rendering, requests in groups.items():
            self._tokenize(rendering, requests)
        self._is_submit_scheduled = bool(self._pending)
        if self._is_submit_scheduled:
            asyncio.get_running_loop().call_soon(self._submit_pending)

    def _tokenize(self, rendering: InputRendering, requests: Sequence[PendingRequest]) -> None:
        try:
            inputs = [item for request in requests for item in request.query.inputs]
            sequences = rendering.encoder.encode(inputs, rendering.prompt, rendering.rules)
        except Exception as error:  # noqa: BLE001  # passed to the request, where it would have been raised
            if len(requests) == 1:
                requests[0].settle(error)
                return
            for request in requests:
                self._tokenize(rendering, [request])
            return
        now = self._clock()
        end = 0
        for request in requests:
            start, end = end, end + len(request.query.inputs)
            request.sequences = sequences[start:end]
            request.tokenized = now
            self._submit(request)

    def _submit(self, request: PendingRequest) -> None:
        try:
            query = request.query
            batch_request = BatchRequest(
                request.sequences, query.outputs, client=request.client, repeats=query.repeats
            )
            on_outcome = partial(self._complete, request)
            request.request_id = self._dispatcher.start(batch_request, request.deadline, on_outcome)
        except EmbedserveError as error:
            request.settle(error)

    # -- from the queue

    def _complete(self, request: PendingRequest, outcome: CompletedRequest | EmbedserveError) -> None:
        """Take the scheduler's outcome of a request."""
        if not isinstance(outcome, CompletedRequest):
            request.settle(outcome)
            return
        request.completed = outcome
        self._completed.append(request)
        if len(self._completed) == 1:
            asyncio.get_running_loop().call_soon(self._settle_completed)

    def _settle_completed(self) -> None:
        completed, self._completed = self._completed, []
        groups: dict[tuple[InputEncoder, int | None, bool | None], list[PendingRequest]] = {}
        for request in completed:
            query = request.query
            groups.setdefault((request.rendering.encoder, query.dimensions, query.normalize), []).append(
                request
            )
        for requests in groups.values():
            self._settle_group(requests)

    def _settle_group(self, requests: Sequence[PendingRequest]) -> None:
        try:
            rows = postprocess_dense(
                self._card, _join_rows(request.completed for request in requests), requests[0].query
            )
        except NotFinite as error:
            if len(requests) == 1:
                requests[0].settle(error)
                return
            for request in requests:
                self._settle_group([request])
            return
        now = self._clock()
        end = 0
        for request in requests:
            start, end = end, end + len(request.sequences)
            request.settle(EmbedResult(rows[start:end], _compute_usage(request, now)))


def _join_rows(completed_requests: Iterable[CompletedRequest]) -> FloatArray:
    rows = [
        NO_ROWS if completed.results.dense is None else completed.results.dense
        for completed in completed_requests
    ]
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


def _compute_usage(request: PendingRequest, now: float) -> RequestUsage:
    completed = request.completed
    timings = Timings(
        now - request.started,
        request.tokenized - request.started,
        completed.queue_seconds,
        completed.engine_seconds,
    )
    return RequestUsage(get_lengths(request.sequences), request.characters, timings)
