"""Routes whose work is one query: how its body is read and its answer written, for two ways of answering.

A request that comes in one piece and asks for little is answered by callbacks, without a task or a coroutine, together
with others of its kind. All others wait for the same functions in a task. What is asked, refused and answered is the
same; a client cannot tell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.body import LEAST_RESERVED
from embedserve_runtime.api.common import result_lines
from embedserve_runtime.api.encoding import RowWriter, write_rows
from embedserve_runtime.api.endpoint import ErrorStyle, Surroundings, Visit
from embedserve_runtime.api.errors import CLIENT_GONE
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.service import Effort, Embedded, EmbeddingService, EmbedQuery, Small, is_small

# Larger bodies are decoded once and not here.
MOST_BODY_BYTES = LEAST_RESERVED

Reply = Callable[[int, bytes, bytes, bool], None]
Abandon = Callable[[], None]
# None leaves the request to the application, with nothing done.
QuickRoute = Callable[[Mapping[bytes, bytes], bytes, Reply], Abandon | None]


class Asked(NamedTuple):
    """writer: of the rows. wrap: from the JSON array of the rows to the body of the answer."""

    query: EmbedQuery
    writer: RowWriter
    wrap: Callable[[bytes, Effort], bytes]


# Raises any RequestError.
Ask = Callable[[Exchange], Asked]


def in_task(readiness: Readiness, ask: Ask) -> Callable[[Exchange], Awaitable[Answer]]:
    """The handler of a request of any size."""

    async def handle(exchange: Exchange) -> Answer:
        service = readiness.service()
        asked = ask(exchange)
        embedded = await service.embed(asked.query)
        rows = await write_rows(embedded.dense, asked.writer)
        return _answer(exchange, service, asked, rows, embedded.effort)

    return handle


def _answer(
    exchange: Exchange, service: EmbeddingService, asked: Asked, rows: bytes, effort: Effort
) -> Answer:
    return Answer(asked.wrap(rows, effort), lines=result_lines(exchange, service, effort))


class QuickEndpoint:
    """As `Endpoint` with the handler of `in_task`, for small requests."""

    def __init__(self, route: str, ask: Ask, error_style: ErrorStyle, around: Surroundings) -> None:
        self.route = route
        self.ask = ask
        self.error_style = error_style
        self.around = around

    def __call__(self, headers: Mapping[bytes, bytes], body: bytes, reply: Reply) -> Abandon | None:
        """None leaves the request to the other way, with nothing done."""
        if len(body) > MOST_BODY_BYTES:
            return None
        visit = Visit(self.around, self.route, headers, is_work=True)
        flight = _Flight(self, visit, reply)
        if not flight.start(body):
            visit.undo()
            return None
        return flight.abandon


class _Flight:
    """A small request until it is answered. Lets go of its query then: the two know each other, and would else be freed
    only by a collection.
    """

    __slots__ = ("_asked", "_endpoint", "_exchange", "_reply", "_reserved", "_service", "_small", "_visit")
    _asked: Asked
    _exchange: Exchange
    _service: EmbeddingService
    _small: Small

    def __init__(self, endpoint: QuickEndpoint, visit: Visit, reply: Reply) -> None:
        self._endpoint = endpoint
        self._visit = visit
        self._reply = reply
        self._reserved = 0

    def start(self, body: bytes) -> bool:
        """False when it is not small."""
        endpoint, visit = self._endpoint, self._visit
        around = endpoint.around
        try:
            around.keys.check(visit.headers)
            around.intake.reserve(LEAST_RESERVED)
            self._reserved = LEAST_RESERVED
            if around.tracer:
                visit.facts.read_seconds = visit.seconds
            self._service = service = around.readiness.service()
            self._exchange = exchange = visit.exchange(body)
            self._asked = asked = endpoint.ask(exchange)
            if not is_small(asked.query):
                self._release()
                return False
            self._small = service.start(asked.query, self._settle)
        except Exception as error:  # noqa: BLE001  # the outermost place of a request; `failed` logs it
            self._end(visit.failed(error, endpoint.error_style))
        return True

    def abandon(self) -> None:
        """The client has gone."""
        self._service.withdraw(self._small)
        del self._small
        self._release()
        self._visit.end("POST", CLIENT_GONE)

    def _settle(self, outcome: Embedded | Exception) -> None:
        del self._small
        try:
            answer = self._answer(outcome)
        except Exception as error:  # noqa: BLE001  # the outermost place of a request; `failed` logs it
            answer = self._visit.failed(error, self._endpoint.error_style)
        self._end(answer)

    def _answer(self, outcome: Embedded | Exception) -> Answer:
        if isinstance(outcome, Exception):
            return self._visit.failed(outcome, self._endpoint.error_style)
        rows = self._asked.writer(outcome.dense, 0)
        answer = _answer(self._exchange, self._service, self._asked, rows, outcome.effort)
        self._visit.facts.failure = None
        return answer

    def _end(self, answer: Answer) -> None:
        visit = self._visit
        self._reply(answer.status, visit.lines_of(answer), answer.body, visit.is_last)
        self._release()
        visit.end("POST", answer.status)

    def _release(self) -> None:
        self._endpoint.around.intake.release(self._reserved)
        self._reserved = 0
