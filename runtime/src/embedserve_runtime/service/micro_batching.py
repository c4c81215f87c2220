"""Small queries, those of one turn of the event loop together: one call of the tokenizer, one pass over their rows.

What a call of a library costs beside its work is then paid once for all of them. In the queue each is a request of its
own, and each gets the answer or the error that it would have got alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from embedserve_runtime.engines.base import FloatArray, Tokens, lengths_of
from embedserve_runtime.engines.results import Output
from embedserve_runtime.errors import EmbedserveError, NotFinite
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.scheduling.batches import BatchRequest, CompletedRequest, RequestDispatcher
from embedserve_runtime.scheduling.outcomes import wait_for_outcome
from embedserve_runtime.service.finishing import NO_ROWS, finish_rows
from embedserve_runtime.service.values import EmbedQuery, EmbedResult, Timings, Usage
from embedserve_runtime.tokenizing import TruncationRules
from embedserve_runtime.tokenizing.backend import MAX_SEQUENTIAL_CHARACTERS
from embedserve_runtime.tokenizing.input_encoders import InputEncoder

# Of one query: some 0.2 ms of tokenising, which costs less than the hop to a thread.
MAX_CHARACTERS = 512
MAX_INPUTS = 16
# Of all that are tokenised in one turn, while the loop waits, some 0.8 ms; the others follow in the next. No more than
# the tokenizer takes without its thread pool: waiting for a thread of that stops the loop for as long as the engine has
# all cores, tens of milliseconds on a full machine.
TURN_CHARACTERS = MAX_SEQUENTIAL_CHARACTERS

# Called once with the outcome; anything but an EmbedserveError is a bug.
OutcomeCallback = Callable[[EmbedResult | Exception], None]


class InputRendering(NamedTuple):
    """How texts become sequences; those of one rendering go through the tokenizer in one call."""

    encoder: InputEncoder
    prompt: str
    rules: TruncationRules


def is_small(query: EmbedQuery) -> bool:
    """Whether a query is answered with others: a few short inputs, of which only vectors are wanted."""
    return (
        query.outputs is Output.DENSE
        and query.spans is None
        and query.pool_factor is None
        and len(query.inputs) <= MAX_INPUTS
        and sum(map(len, query.inputs)) + len(query.prompt or "") <= MAX_CHARACTERS
    )


class PendingRequest:
    """A query that is being answered. number: in the queue, once it is there. characters: of its inputs."""

    __slots__ = (
        "characters",
        "deadline",
        "done",
        "finished",
        "is_over",
        "number",
        "query",
        "rendering",
        "sequences",
        "settle",
        "started",
        "tokenized",
    )
    sequences: Sequence[Tokens]
    tokenized: float
    done: CompletedRequest

    def __init__(
        self,
        query: EmbedQuery,
        rendering: InputRendering,
        settle: OutcomeCallback,
        finished: Callable[[PendingRequest], None],
        *,
        started: float,
        deadline: float,
    ) -> None:
        """finished: told when its rows are there."""
        self.query = query
        self.rendering = rendering
        self.characters = sum(map(len, query.inputs))
        self.settle = settle
        self.finished = finished
        self.started = started
        self.deadline = deadline
        self.number: int | None = None
        self.is_over = False

    def complete(self, outcome: CompletedRequest | EmbedserveError) -> None:
        """The scheduler's answer."""
        if isinstance(outcome, CompletedRequest):
            self.done = outcome
            self.finished(self)
        else:
            self.end(outcome)

    def end(self, outcome: EmbedResult | Exception) -> None:
        if not self.is_over:
            self.is_over = True
            self.settle(outcome)


class MicroBatcher:
    """Puts small queries together. Belongs to one event loop."""

    def __init__(self, card: ModelCard, dispatcher: RequestDispatcher, clock: Callable[[], float]) -> None:
        self._card = card
        self._dispatcher = dispatcher
        self._clock = clock
        self._coming: deque[PendingRequest] = deque()
        self._ended: list[PendingRequest] = []
        self._sends = False

    async def embed(
        self, query: EmbedQuery, rendering: InputRendering, started: float, deadline: float
    ) -> EmbedResult:
        """started: when the request came. Both are times of the clock. Raises any RequestError."""
        return await wait_for_outcome(
            lambda settle: self._start(query, rendering, settle, started, deadline), self._withdraw
        )

    def _start(
        self,
        query: EmbedQuery,
        rendering: InputRendering,
        settle: OutcomeCallback,
        started: float,
        deadline: float,
    ) -> PendingRequest:
        request = PendingRequest(
            query, rendering, settle, self._settle_finished, started=started, deadline=deadline
        )
        self._coming.append(request)
        if not self._sends:
            self._sends = True
            asyncio.get_running_loop().call_soon(self._send)
        return request

    def _withdraw(self, request: PendingRequest) -> None:
        """Nobody waits for it any more."""
        request.is_over = True
        if request.number is not None:
            self._dispatcher.withdraw(request.number)

    # -- to the queue

    def _send(self) -> None:
        groups: dict[InputRendering, list[PendingRequest]] = {}
        characters = 0
        while self._coming:
            request = self._coming[0]
            characters += request.characters + len(request.rendering.prompt) * len(request.query.inputs)
            if characters > TURN_CHARACTERS and groups:
                break
            self._coming.popleft()
            if not request.is_over:
                groups.setdefault(request.rendering, []).append(request)
        for rendering, requests in groups.items():
            self._tokenize(rendering, requests)
        self._sends = bool(self._coming)
        if self._sends:
            asyncio.get_running_loop().call_soon(self._send)

    def _tokenize(self, rendering: InputRendering, requests: Sequence[PendingRequest]) -> None:
        try:
            inputs = [item for request in requests for item in request.query.inputs]
            sequences = rendering.encoder.encode(inputs, rendering.prompt, rendering.rules)
        except Exception as error:  # noqa: BLE001  # handed to who asked, as it would have been raised there
            if len(requests) == 1:
                requests[0].end(error)
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
            batch_request = BatchRequest(request.sequences, request.query.outputs)
            request.number = self._dispatcher.start(batch_request, request.deadline, request.complete)
        except EmbedserveError as error:
            request.end(error)

    # -- from the queue

    def _settle_finished(self, request: PendingRequest) -> None:
        self._ended.append(request)
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_soon(self._finish)

    def _finish(self) -> None:
        ended, self._ended = self._ended, []
        groups: dict[tuple[InputEncoder, int | None, bool | None], list[PendingRequest]] = {}
        for request in ended:
            query = request.query
            groups.setdefault((request.rendering.encoder, query.dimensions, query.normalize), []).append(
                request
            )
        for requests in groups.values():
            self._finish_alike(requests)

    def _finish_alike(self, requests: Sequence[PendingRequest]) -> None:
        try:
            rows = finish_rows(
                self._card, _join_rows(request.done for request in requests), requests[0].query
            )
        except NotFinite as error:
            if len(requests) == 1:
                requests[0].end(error)
                return
            for request in requests:
                self._finish_alike([request])
            return
        now = self._clock()
        end = 0
        for request in requests:
            start, end = end, end + len(request.sequences)
            request.end(EmbedResult(rows[start:end], (), (), (), (), _usage(request, now)))


def _join_rows(all_done: Iterable[CompletedRequest]) -> FloatArray:
    rows = [NO_ROWS if done.results.dense is None else done.results.dense for done in all_done]
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


def _usage(request: PendingRequest, now: float) -> Usage:
    done = request.done
    timings = Timings(
        now - request.started, request.tokenized - request.started, done.queue_seconds, done.engine_seconds
    )
    return Usage(lengths_of(request.sequences), request.characters, timings)
