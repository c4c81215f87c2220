"""Forwards calls that come by the service's name after the name has moved to another vector space.

As with HTTP (api/middleware/forwarding.py), a connection that is still open leads here, but must not get vectors of
this space any more: its calls are forwarded to the other space's own name, byte by byte, until the connection is so old
that its client is asked to reconnect. Calls that the other side refuses are counted there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from grpc import aio

from embedserve_runtime.api.middleware.forwarding import (
    MAX_RETRY_SECONDS,
    build_space_address,
    unreachable_space_error,
)
from embedserve_runtime.api.routes import FORWARDED
from embedserve_runtime.rpc.calls import CallContext, CallRecorder, GrpcContext, refuse_call
from embedserve_runtime.rpc.handlers import RpcContext
from embedserve_runtime.rpc.messages import read_single_message

log = logging.getLogger(__name__)

T = TypeVar("T")
# The library's stubs need message classes, and these are bytes.
Channel = Any
Metadata = list[tuple[str, str | bytes]]
# Metadata of the connection itself, which the library sets again.
_TRANSPORT_METADATA = ("grpc-", "user-agent")
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
if TYPE_CHECKING:  # the library's class takes parameters for type checkers only
    LibraryHandler = grpc.RpcMethodHandler[Any, Any]


class CallForwarder(aio.ServerInterceptor):
    """Intercepts the calls of `services` and forwards those that belong to another vector space.

    space_grpc: host and port of a space's own name, with {space8} instead of the first digits of its identity.
    """

    def __init__(self, context: RpcContext, services: Iterable[str], space_grpc: str) -> None:
        self._server = context.server
        self._memory = context.memory
        self._recorder = CallRecorder(context.server, FORWARDED)
        pool = descriptor_pool.Default()
        self._methods: dict[str, MethodDescriptor] = {
            f"/{service}/{method.name}": method
            for service in services
            for method in pool.FindServiceByName(service).methods
        }
        self._space_grpc = space_grpc
        # By space: as many as the name has stood for during the life of this process.
        self._channels: dict[str, aio.Channel] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[LibraryHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> LibraryHandler | None:
        """Return the method's own handler, or one that forwards the call."""
        space = self._server.readiness.find_forwarding_space()
        path = handler_call_details.method
        method = self._methods.get(path)
        if space is None or method is None:
            return await continuation(handler_call_details)
        if method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(partial(self._bidirectional, path, space))
        forward = self._client_stream if method.client_streaming else self._unary
        return grpc.stream_unary_rpc_method_handler(partial(forward, path, space))

    async def close(self) -> None:
        """End the calls that are still being forwarded."""
        for channel in self._channels.values():
            await channel.close()

    async def _unary(
        self, path: str, space: str, messages: AsyncIterator[bytes], context: GrpcContext
    ) -> bytes:
        async def run(channel: Channel, call: CallContext) -> bytes:
            self._memory.check()
            message = await read_single_message(messages)
            with self._memory.call() as memory:
                memory.grow_to(len(message))
                timeout = self._server.readiness.service().batching.request_timeout_seconds
                if call.seconds_left is not None:
                    timeout = min(timeout, call.seconds_left)
                outgoing = channel.unary_unary(path)(
                    message, metadata=_forwarded_metadata(call), timeout=timeout
                )
                return await _receive_answer(outgoing, context)

        return await self._forward(space, context, run)

    async def _client_stream(
        self, path: str, space: str, messages: AsyncIterator[bytes], context: GrpcContext
    ) -> bytes:
        async def run(channel: Channel, call: CallContext) -> bytes:
            outgoing = channel.stream_unary(path)(
                self._count_messages(messages), metadata=_forwarded_metadata(call), timeout=call.seconds_left
            )
            return await _receive_answer(outgoing, context)

        return await self._forward(space, context, run)

    async def _bidirectional(
        self, path: str, space: str, messages: AsyncIterator[bytes], context: GrpcContext
    ) -> None:
        async def run(channel: Channel, call: CallContext) -> None:
            outgoing = channel.stream_stream(path)(
                self._count_messages(messages), metadata=_forwarded_metadata(call), timeout=call.seconds_left
            )
            await context.send_initial_metadata(_application_metadata(await outgoing.initial_metadata()))
            async for answer in outgoing:
                await context.write(answer)

        await self._forward(space, context, run)

    async def _count_messages(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the messages of a stream; each counts in memory until it has been written to the other side."""
        with self._memory.stream() as memory:
            async for message in memory.received(messages):
                with memory.answered(len(message)):
                    yield message

    async def _forward(
        self,
        space: str,
        context: GrpcContext,
        run: Callable[[Channel, CallContext], Awaitable[T]],
    ) -> T:
        """Run a forwarded call. It ends with the status of the other side if that refuses it."""
        async with self._recorder.record_call(context) as call:
            with self._recorder.record_request(call):
                try:
                    return await run(await self._connect(space), call)
                except aio.AioRpcError as error:
                    refusal = error
            trailers = tuple(_application_metadata(refusal.trailing_metadata()))
            return await refuse_call(context, refusal.code(), refusal.details() or "", trailers)

    async def _connect(self, space: str) -> aio.Channel:
        """Connect to the space's own name. Raises NotReady when it cannot be reached."""
        address = build_space_address(self._space_grpc, space)
        if space not in self._channels:
            self._channels[space] = aio.insecure_channel(address, options=_OPTIONS)
        channel = self._channels[space]
        try:
            async with asyncio.timeout(MAX_RETRY_SECONDS):
                await channel.channel_ready()
        except TimeoutError as error:
            log.warning("a call could not be forwarded: %s cannot be reached", address)
            raise unreachable_space_error(space) from error
        return channel


async def _receive_answer(call: Any, context: GrpcContext) -> bytes:
    await context.send_initial_metadata(_application_metadata(await call.initial_metadata()))
    answer: bytes = await call
    return answer


def _forwarded_metadata(call: CallContext) -> Metadata:
    """Return the client's metadata, with the request id under which this server has logged the call."""
    return [
        *(
            pair
            for pair in _application_metadata(call.grpc_context.invocation_metadata())
            if pair[0] != "x-request-id"
        ),
        ("x-request-id", call.request_id),
    ]


def _application_metadata(metadata: Any) -> Metadata:
    return [(name, value) for name, value in metadata or () if not name.startswith(_TRANSPORT_METADATA)]
