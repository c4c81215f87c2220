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
from embedserve_runtime.errors import EmbedserveError, NotFinite
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.results import Output
from embedserve_runtime.scheduling.work import Completed, Order, Submits
from embedserve_runtime.service.finishing import NO_ROWS, finish_rows
from embedserve_runtime.service.values import Effort, Embedded, EmbedQuery, Timings
from embedserve_runtime.tokenizing import CutRules
from embedserve_runtime.tokenizing.reader import FEW_CHARACTERS
from embedserve_runtime.tokenizing.ways import Way

# Of one query: some 0.2 ms of tokenising, which costs less than the hop to a thread.
MOST_CHARACTERS = 512
MOST_INPUTS = 16
# Of all that are tokenised in one turn, while the loop waits, some 0.8 ms; the others follow in the next. No more than
# the tokenizer takes without its thread pool: waiting for a thread of that stops the loop for as long as the engine has
# all cores, tens of milliseconds on a full machine.
TURN_CHARACTERS = FEW_CHARACTERS

# Called once with the outcome; anything but an EmbedserveError is a bug.
Settle = Callable[[Embedded | Exception], None]


class Rendering(NamedTuple):
    """How texts become sequences; those of one rendering go through the tokenizer in one call."""

    way: Way
    prompt: str
    rules: CutRules


def is_small(query: EmbedQuery) -> bool:
    """Whether a query is answered with others: a few short inputs, of which only vectors are wanted."""
    return (
        query.outputs is Output.DENSE
        and query.spans is None
        and query.pool_factor is None
        and len(query.inputs) <= MOST_INPUTS
        and sum(map(len, query.inputs)) + len(query.prompt or "") <= MOST_CHARACTERS
    )


class Small:
    """A query on its way. number: in the queue, once it is there. characters: of its inputs."""

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
    done: Completed

    def __init__(
        self,
        query: EmbedQuery,
        rendering: Rendering,
        settle: Settle,
        finished: Callable[[Small], None],
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

    def complete(self, outcome: Completed | EmbedserveError) -> None:
        """The scheduler's answer."""
        if isinstance(outcome, Completed):
            self.done = outcome
            self.finished(self)
        else:
            self.end(outcome)

    def end(self, outcome: Embedded | Exception) -> None:
        if not self.is_over:
            self.is_over = True
            self.settle(outcome)


class Gathering:
    """Belongs to one event loop."""

    def __init__(self, card: ModelCard, dispatcher: Submits, clock: Callable[[], float]) -> None:
        self._card = card
        self._dispatcher = dispatcher
        self._clock = clock
        self._coming: deque[Small] = deque()
        self._ended: list[Small] = []
        self._sends = False

    def start(
        self, query: EmbedQuery, rendering: Rendering, settle: Settle, started: float, deadline: float
    ) -> Small:
        """started: when the request came. Both are times of the clock."""
        small = Small(query, rendering, settle, self._finished, started=started, deadline=deadline)
        self._coming.append(small)
        if not self._sends:
            self._sends = True
            asyncio.get_running_loop().call_soon(self._send)
        return small

    def withdraw(self, small: Small) -> None:
        """Nobody waits for it any more."""
        small.is_over = True
        if small.number is not None:
            self._dispatcher.withdraw(small.number)

    # -- to the queue

    def _send(self) -> None:
        groups: dict[Rendering, list[Small]] = {}
        characters = 0
        while self._coming:
            small = self._coming[0]
            characters += small.characters + len(small.rendering.prompt) * len(small.query.inputs)
            if characters > TURN_CHARACTERS and groups:
                break
            self._coming.popleft()
            if not small.is_over:
                groups.setdefault(small.rendering, []).append(small)
        for rendering, smalls in groups.items():
            self._tokenize(rendering, smalls)
        self._sends = bool(self._coming)
        if self._sends:
            asyncio.get_running_loop().call_soon(self._send)

    def _tokenize(self, rendering: Rendering, smalls: Sequence[Small]) -> None:
        try:
            inputs = [item for small in smalls for item in small.query.inputs]
            sequences = rendering.way.encode(inputs, rendering.prompt, rendering.rules)
        except Exception as error:  # noqa: BLE001  # handed to who asked, as it would have been raised there
            if len(smalls) == 1:
                smalls[0].end(error)
                return
            for small in smalls:
                self._tokenize(rendering, [small])
            return
        now = self._clock()
        end = 0
        for small in smalls:
            start, end = end, end + len(small.query.inputs)
            small.sequences = sequences[start:end]
            small.tokenized = now
            self._submit(small)

    def _submit(self, small: Small) -> None:
        try:
            order = Order(small.sequences, small.query.outputs)
            small.number = self._dispatcher.start(order, small.deadline, small.complete)
        except EmbedserveError as error:
            small.end(error)

    # -- from the queue

    def _finished(self, small: Small) -> None:
        self._ended.append(small)
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_soon(self._finish)

    def _finish(self) -> None:
        ended, self._ended = self._ended, []
        groups: dict[tuple[Way, int | None, bool | None], list[Small]] = {}
        for small in ended:
            query = small.query
            groups.setdefault((small.rendering.way, query.dimensions, query.normalize), []).append(small)
        for smalls in groups.values():
            self._finish_alike(smalls)

    def _finish_alike(self, smalls: Sequence[Small]) -> None:
        try:
            rows = finish_rows(self._card, _joined(small.done for small in smalls), smalls[0].query)
        except NotFinite as error:
            if len(smalls) == 1:
                smalls[0].end(error)
                return
            for small in smalls:
                self._finish_alike([small])
            return
        now = self._clock()
        end = 0
        for small in smalls:
            start, end = end, end + len(small.sequences)
            small.end(Embedded(rows[start:end], (), (), (), (), _effort(small, now)))


def _joined(all_done: Iterable[Completed]) -> FloatArray:
    rows = [NO_ROWS if done.results.dense is None else done.results.dense for done in all_done]
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


def _effort(small: Small, now: float) -> Effort:
    done = small.done
    timings = Timings(
        now - small.started, small.tokenized - small.started, done.queue_seconds, done.engine_seconds
    )
    return Effort(lengths_of(small.sequences), small.characters, timings)
