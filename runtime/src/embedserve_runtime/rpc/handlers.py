"""Creates the library's method handlers from functions that turn one message into one response.

For the library every method takes a stream of bytes, even those with one message: so the API key and the memory for the
message are checked before it is read, and the code here reads it. On the wire there is no difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from embedserve_runtime.api.context import RequestContext, ServerContext
from embedserve_runtime.api.errors import RouteNotFound
from embedserve_runtime.api.input_types import TypedRequest, select_service
from embedserve_runtime.api.inputs import RequestOptions, read_request_options
from embedserve_runtime.api.responses import SPACE_HEADERS, Header, build_result_headers, record_usage
from embedserve_runtime.api.routes import OTHER
from embedserve_runtime.errors import BatchTooLarge, NotReady, Overloaded, RateLimited
from embedserve_runtime.rpc.calls import CallContext, CallRecorder, GrpcContext
from embedserve_runtime.rpc.memory import CallMemory, MessageMemory, StreamMemory
from embedserve_runtime.rpc.messages import check_size, parse, read_single_message
from embedserve_runtime.rpc.ordered_answers import answer_in_order
from embedserve_runtime.service import InferenceService, RequestUsage
from embedserve_runtime.service.current_client import begin_request

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
T = TypeVar("T")


class Response(NamedTuple, Generic[A]):
    """The response of a handler. usage: that of the model; None where it did not run. service: the one of the task that
    answered; None for the model's first."""

    message: A
    usage: RequestUsage | None = None
    service: InferenceService | None = None


@dataclass(frozen=True, slots=True)
class MessageContext:
    """The context of a message: all that handlers need besides its fields.

    request: how the message is identified and counted. options: those of the client, including the deadline of the
    call.
    """

    service: InferenceService
    request: RequestContext
    options: RequestOptions
    model_name: str

    def for_task(self, fields: TypedRequest) -> MessageContext:
        """Return the same with the service of the task that the fields name."""
        return replace(self, service=select_service(self.service, fields))


# Handlers raise any RequestError.
Handler = Callable[[MessageContext, Q], Awaitable[Response[A]]]
ClientStreamHandler = Callable[[MessageContext, Sequence[Q]], Awaitable[Response[A]]]

# The library's handlers, by the name of the method.
Methods = dict[str, "grpc.RpcMethodHandler[Any, Any]"]


class _Stream(NamedTuple):
    """A stream of messages. turn: held by the message that waits for the client's rate."""

    call: CallContext
    memory: StreamMemory
    turn: asyncio.Lock


class _ResponseWithHeaders(NamedTuple, Generic[A]):
    message: A
    headers: tuple[Header, ...]


class RpcContext(NamedTuple):
    """The state that the methods of all services share."""

    server: ServerContext
    memory: MessageMemory


class MethodHandlers:
    """Creates the library's handlers for the methods of one service.

    name_may_move: whether calls come by a name that may move to another vector space.
    """

    def __init__(self, context: RpcContext, service: str, *, name_may_move: bool = False) -> None:
        self._server = context.server
        self._memory = context.memory
        self._name_may_move = name_may_move
        self._recorder = CallRecorder(context.server, service)
        self._route = f"/{service}"

    def unary(self, kind: type[Q], handler: Handler[Q, A]) -> grpc.RpcMethodHandler[bytes, A]:
        """Create the handler of a method with one message and one answer. kind: the message's class."""

        async def serve(messages: AsyncIterator[bytes], context: GrpcContext) -> A:
            async with self._recorder.record_call(context) as call:
                with self._recorder.record_refusals(call):
                    self._admit(call)
                    message = await read_single_message(messages)
                with self._recorder.record_request(call) as request_context, self._memory.call() as memory:
                    check_size(message, self._memory.max_message_bytes)
                    memory.grow_to(len(message))
                    request = parse(kind, message)
                    response = await self._handle(call, request_context, request, handler)
                return await _send_initial_metadata(call, response)

        return grpc.stream_unary_rpc_method_handler(serve, None, _serialize)

    def bidirectional(
        self, kind: type[Q], handler: Handler[Q, A], window: int
    ) -> grpc.RpcMethodHandler[bytes, A]:
        """Create the handler of a method with one answer for each message, in order, all of one vector space.

        window: the same as in `answer_in_order`.
        """

        async def serve(messages: AsyncIterator[bytes], context: GrpcContext) -> None:
            async with self._recorder.record_call(context) as call:
                with self._recorder.record_refusals(call):
                    self._identify(call)
                with self._memory.stream() as memory:
                    stream = _Stream(call, memory, asyncio.Lock())

                    async def answer(message: bytes) -> _ResponseWithHeaders[A]:
                        return await self._answer_streamed(stream, message, kind, handler)

                    received = memory.received(messages)
                    async with aclosing(answer_in_order(received, answer, window)) as answers:
                        await _write_answers(call, answers)

        return grpc.stream_stream_rpc_method_handler(serve, None, _serialize)

    def client_stream(
        self, kind: type[Q], handler: ClientStreamHandler[Q, A]
    ) -> grpc.RpcMethodHandler[bytes, A]:
        """Create the handler of a method with one answer for all messages, which count and are bounded as one
        request."""

        async def serve(messages: AsyncIterator[bytes], context: GrpcContext) -> A:
            async with self._recorder.record_call(context) as call:
                with self._recorder.record_request(call) as request_context, self._memory.call() as memory:
                    self._admit(call)
                    requests = await self._collect(messages, kind, memory)
                    response = await self._handle(call, request_context, requests, handler)
                return await _send_initial_metadata(call, response)

        return grpc.stream_unary_rpc_method_handler(serve, None, _serialize)

    def _admit(self, call: CallContext) -> None:
        """Check a call with one answer before its message is read.

        Raises Unauthorized, RouteForbidden, NotReady, Overloaded.
        """
        self._identify(call)
        self._server.readiness.service()
        self._memory.check()

    def _identify(self, call: CallContext) -> None:
        """Find the client of a call or of one message of a stream, which have tasks of their own.

        Raises Unauthorized, RouteForbidden.
        """
        begin_request(self._server.clients.identify(call.headers, self._route))

    async def _collect(self, messages: AsyncIterator[bytes], kind: type[Q], memory: CallMemory) -> list[Q]:
        max_messages = self._server.readiness.service().dispatcher.limits.queue_inputs
        max_bytes = self._memory.max_message_bytes
        requests: list[Q] = []
        total = 0
        async for message in messages:
            check_size(message, max_bytes)
            request = parse(kind, message)
            total += len(message)
            if total > max_bytes or len(requests) == max_messages:
                raise BatchTooLarge(
                    f"a stream with one answer takes {max_messages} messages of {max_bytes} bytes in all; use several"
                )
            memory.grow_to(total)
            requests.append(request)
        return requests

    async def _answer_streamed(
        self, stream: _Stream, message: bytes, kind: type[Q], handler: Handler[Q, A]
    ) -> _ResponseWithHeaders[A]:
        """Answer one message of a stream.

        When the queue is full or the client's rate used up, wait for as long as a request may take; for the rate in the
        order of the messages, since those that come later would use up what the first one waits for.
        """
        with (
            self._recorder.record_request(stream.call) as request_context,
            stream.memory.answered(len(message)),
        ):
            self._check_current()
            check_size(message, self._memory.max_message_bytes)
            self._memory.check_fits_alone(len(message))
            request = parse(kind, message)
            waiting = partial(self._handle_patiently, stream, request_context, request, handler)
            if not stream.turn.locked():
                with contextlib.suppress(RateLimited):
                    return await waiting(waits_for_rate=False)
            async with stream.turn:
                return await waiting(waits_for_rate=True)

    async def _handle_patiently(
        self,
        stream: _Stream,
        request_context: RequestContext,
        request: T,
        handler: Callable[[MessageContext, T], Awaitable[Response[A]]],
        *,
        waits_for_rate: bool,
    ) -> _ResponseWithHeaders[A]:
        """Handle a request, and try again while it is refused for a time, for as long as a request may take."""
        service = self._server.readiness.service()
        deadline = time.perf_counter() + service.batching.request_timeout_seconds
        while True:
            self._identify(stream.call)  # a key may end while the stream goes on
            try:
                return await self._handle(stream.call, request_context, request, handler)
            except Overloaded as full:
                is_for_rate = isinstance(full, RateLimited)
                if (is_for_rate and not waits_for_rate) or time.perf_counter() + full.retry_after > deadline:
                    raise
                await asyncio.sleep(full.retry_after)

    async def _handle(
        self,
        call: CallContext,
        request_context: RequestContext,
        request: T,
        handler: Callable[[MessageContext, T], Awaitable[Response[A]]],
    ) -> _ResponseWithHeaders[A]:
        service = self._server.readiness.service()
        options = _request_options(call, request_context)
        context = MessageContext(service, request_context, options, self._server.model_name)
        response = await handler(context, request)
        if response.usage is None:
            return _ResponseWithHeaders(response.message, ())
        record_usage(request_context.facts, response.usage)
        headers = build_result_headers(response.service or service, response.usage)
        return _ResponseWithHeaders(response.message, headers)

    def _check_current(self) -> None:
        """Raise NotReady in a stream that began before the service's name moved: the client may begin another."""
        space = self._server.readiness.find_forwarding_space() if self._name_may_move else None
        if space is not None:
            raise NotReady(
                f"the service's name now stands for vector space {space}, and the answers of one stream are of one "
                "space: send the rest in another"
            )


class UnknownMethods(grpc.GenericRpcHandler):
    """Refuses calls of unknown methods, so that they are counted. It has to be the last handler."""

    def __init__(self, server: ServerContext) -> None:
        self._recorder = CallRecorder(server, OTHER)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = handler_call_details.method

        async def refuse(_: AsyncIterator[bytes], context: GrpcContext) -> bytes:
            async with self._recorder.record_call(context) as call:
                with self._recorder.record_request(call, is_work=False):
                    raise RouteNotFound(f"there is no method {method}")

        return grpc.stream_unary_rpc_method_handler(refuse)


async def _write_answers(call: CallContext, answers: AsyncIterator[_ResponseWithHeaders[A]]) -> None:
    """Write the answers of a stream, with the initial metadata of the first one."""
    metadata_sent = False
    async for message, headers in answers:
        if not metadata_sent:
            metadata_sent = True
            await call.grpc_context.send_initial_metadata(
                _decode_headers(header for header in headers if header[0].lower() in SPACE_HEADERS)
            )
        await call.grpc_context.write(message)


async def _send_initial_metadata(call: CallContext, response: _ResponseWithHeaders[A]) -> A:
    """Send HTTP's headers, the vector space, counts and times, as initial metadata; return the message."""
    if response.headers:
        await call.grpc_context.send_initial_metadata(_decode_headers(response.headers))
    return response.message


def _request_options(call: CallContext, request: RequestContext) -> RequestOptions:
    """Read the options of a request, with the shorter of the two timeouts that the client may set."""
    options = read_request_options(request)
    times = [seconds for seconds in (options.timeout, call.seconds_left) if seconds is not None]
    return options._replace(timeout=min(times, default=None))


def _decode_headers(headers: Iterable[Header]) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode(), value.decode()) for name, value in headers)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
