"""What surrounds every call: API key, room for its bytes, deadline, counting, errors as statuses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message
from grpc import StatusCode
from grpc.aio import ServicerContext

from embedserve_runtime.api.asgi import Exchange, Header, headers_in
from embedserve_runtime.api.body import LEAST_RESERVED
from embedserve_runtime.api.common import VECTOR_SPACE, Terms, result_lines, terms_of
from embedserve_runtime.api.endpoint import Surroundings, Visit, request_id_of
from embedserve_runtime.api.errors import CLIENT_GONE
from embedserve_runtime.errors import BatchTooLarge, EmbedserveError, NotReady, Overloaded
from embedserve_runtime.rpc.statuses import status_of, trailers_of
from embedserve_runtime.rpc.streams import in_order
from embedserve_runtime.service import Effort, EmbeddingService
from embedserve_runtime.telemetry.requests import RequestFacts

log = logging.getLogger(__name__)

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
if TYPE_CHECKING:  # the library's class takes parameters for type checkers only
    Context = ServicerContext[Any, Any]
OK = 200


class Answered(NamedTuple, Generic[A]):
    """effort: None where nothing has run."""

    message: A
    effort: Effort | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One message as handlers see it. terms: what the client insists on, the deadline of the call included."""

    service: EmbeddingService
    exchange: Exchange
    terms: Terms
    model_name: str


# Raise any RequestError.
Run = Callable[[Call], Awaitable[Answered[A]]]
Handler = Callable[[Call, Q], Awaitable[Answered[A]]]
CollectedHandler = Callable[[Call, Sequence[Q]], Awaitable[Answered[A]]]


# By name of the method.
Methods = dict[str, "grpc.RpcMethodHandler[Any, Any]"]


class Caller(NamedTuple):
    """Who calls, of a whole stream."""

    context: Context
    headers: dict[bytes, bytes]
    request_id: str


class _Done(NamedTuple, Generic[A]):
    message: A
    headers: tuple[Header, ...]


class Desk:
    """Makes the library's method handlers of ours.

    label: of the service in metrics and logs. moves: whether calls come by the service's own name, which may pass to
    another vector space.
    """

    def __init__(self, around: Surroundings, model_name: str, label: str, *, moves: bool = False) -> None:
        self._moves = moves
        self._around = around
        self._model_name = model_name
        self._label = label

    def unary(self, request: type[Q], handler: Handler[Q, A]) -> grpc.RpcMethodHandler[Q, A]:
        async def serve(message: Q, context: Context) -> A:
            async with self.called(context) as caller:
                return await self._answer_once(
                    caller, message.ByteSize(), lambda call: handler(call, message)
                )

        return grpc.unary_unary_rpc_method_handler(serve, request.FromString, _serialize)

    def stream(self, request: type[Q], handler: Handler[Q, A], window: int) -> grpc.RpcMethodHandler[Q, A]:
        """One answer for each message, in order, all of one vector space. window: of `in_order`."""

        async def serve(messages: AsyncIterator[Q], context: Context) -> None:
            async with self.called(context) as caller:

                async def answer(message: Q) -> _Done[A]:
                    self._check_current()
                    size = message.ByteSize()
                    return await self._answer(caller, size, lambda call: handler(call, message), True)

                async with aclosing(in_order(messages, answer, window)) as answers:
                    begun = False
                    async for answered, headers in answers:
                        if not begun:
                            begun = True
                            await context.send_initial_metadata(_space_in(headers))
                        await context.write(answered)

        return grpc.stream_stream_rpc_method_handler(serve, request.FromString, _serialize)

    def collected(self, request: type[Q], handler: CollectedHandler[Q, A]) -> grpc.RpcMethodHandler[Q, A]:
        """One answer for all messages of a stream, which are bounded as those of one request are."""

        async def serve(messages: AsyncIterator[Q], context: Context) -> A:
            async with self.called(context) as caller:

                async def run(call: Call) -> Answered[A]:
                    with ExitStack() as room:
                        return await handler(call, await self._collect(messages, call, room))

                return await self._answer_once(caller, 0, run)

        return grpc.stream_unary_rpc_method_handler(serve, request.FromString, _serialize)

    async def _collect(self, messages: AsyncIterator[Q], call: Call, room: ExitStack) -> list[Q]:
        most, most_bytes = call.service.dispatcher.limits.queue_inputs, self._around.intake.max_bytes
        collected: list[Q] = []
        total = 0
        async for message in messages:
            size = message.ByteSize()
            total += size
            collected.append(message)
            if total > most_bytes or len(collected) > most:
                raise BatchTooLarge(
                    f"a stream with one answer takes {most} messages of {most_bytes} bytes in all; use several"
                )
            room.enter_context(self.reserved(size))
        return collected

    async def _answer_once(self, caller: Caller, size: int, run: Run[A]) -> A:
        """With HTTP's headers as initial metadata: the vector space, counts and times."""
        message, headers = await self._answer(caller, size, run, False)
        if headers:
            await caller.context.send_initial_metadata(
                [(name.decode(), value.decode()) for name, value in headers]
            )
        return message

    async def _answer(self, caller: Caller, size: int, run: Run[A], waits: bool) -> _Done[A]:
        """size: bytes of the message. waits: for room when there is none, as long as a request may take."""
        with self.counted(caller) as facts:
            self._around.keys.check(caller.headers)
            exchange = Exchange(caller.headers, b"", caller.request_id, facts)
            service = self._around.readiness.service()
            patience = time.perf_counter() + service.batching.request_timeout_seconds
            while True:
                try:
                    with self.reserved(max(size, LEAST_RESERVED)):
                        answered = await run(
                            Call(service, exchange, _terms(caller, exchange), self._model_name)
                        )
                        break
                except Overloaded as full:
                    if not waits or time.perf_counter() + full.retry_after > patience:
                        raise
                    await asyncio.sleep(full.retry_after)
            if answered.effort is None:
                return _Done(answered.message, ())
            return _Done(
                answered.message, tuple(headers_in(result_lines(exchange, service, answered.effort)))
            )

    def _check_current(self) -> None:
        """Raises NotReady in a stream that began before the service's name passed: the client may begin another."""
        space = self._around.readiness.elsewhere() if self._moves else None
        if space is not None:
            raise NotReady(
                f"the service's name now stands for vector space {space}, and the answers of one stream are of one "
                "space: send the rest in another"
            )

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        intake = self._around.intake
        intake.reserve(size)
        try:
            yield
        finally:
            intake.release(size)

    @contextmanager
    def counted(self, caller: Caller) -> Iterator[RequestFacts]:
        """Counts a message as a request, under the status that HTTP has for what came of it."""
        visit = Visit(self._around, self._label, caller.headers, is_work=True, request_id=caller.request_id)
        status, code = CLIENT_GONE, StatusCode.CANCELLED
        try:
            yield visit.facts
            status, code, visit.facts.failure = OK, StatusCode.OK, None
        except Exception as error:  # the outermost place: a bug must tell nothing of the inside
            told, wire = visit.told(error)
            status, code = wire.status, status_of(told)
            if told is error:
                raise
            raise told from error
        finally:
            visit.count("", status, visit.seconds, code.value[0])

    @asynccontextmanager
    async def called(self, context: Context) -> AsyncGenerator[Caller]:
        """Logs a call, and ends it with the status of an error."""
        headers = {
            name.encode(): value if isinstance(value, bytes) else value.encode()
            for name, value in context.invocation_metadata() or ()
        }
        caller = Caller(context, headers, request_id_of(headers))
        started = time.perf_counter()
        status = StatusCode.CANCELLED
        try:
            yield caller
            status = StatusCode.OK
        except EmbedserveError as error:
            status = status_of(error)
            await context.abort(status, error.message, trailers_of(error, caller.request_id))
        finally:
            fields = {
                "route": self._label,
                "status": status.name,
                "milliseconds": round((time.perf_counter() - started) * 1000, 3),
                "request_id": caller.request_id,
            }
            log.info("call", extra=fields)


def _terms(caller: Caller, exchange: Exchange) -> Terms:
    """The shorter of the two times that the client gives."""
    terms = terms_of(exchange)
    left = caller.context.time_remaining()
    times = [seconds for seconds in (terms.timeout, left) if seconds is not None]
    return terms._replace(timeout=min(times, default=None))


def _space_in(headers: tuple[Header, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode(), value.decode()) for name, value in headers if name.lower() == VECTOR_SPACE)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
