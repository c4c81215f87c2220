"""Calls that come in by the service's own name after it has passed to another vector space.

As with HTTP (api/forwarding.py), a connection of before still leads here and must not go on getting the vectors of
before: its calls are passed on to the other space's own name, byte by byte, until the connection is so old that its
client is asked to connect anew. What the other side refuses is counted there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from grpc import aio

from embedserve_runtime.api.endpoint import Surroundings
from embedserve_runtime.api.forwarding import FORWARDED, PATIENCE_SECONDS, in_place
from embedserve_runtime.errors import NotReady
from embedserve_runtime.rpc.calls import Caller, Desk

log = logging.getLogger(__name__)

T = TypeVar("T")
# The library's stubs want the classes of messages, and these are bytes.
Channel = Any
Pairs = list[tuple[str, str | bytes]]
# Of the connection itself: said anew by the library.
_OF_THE_CONNECTION = ("grpc-", "user-agent")
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
if TYPE_CHECKING:  # the library's classes take parameters for type checkers only
    Context = aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]


class Passing(aio.ServerInterceptor):
    """In front of the methods of `services`.

    space_grpc: host and port of a space's own name, with {space8} in place of the first digits of its identity.
    """

    def __init__(
        self, around: Surroundings, model_name: str, services: frozenset[str], space_grpc: str
    ) -> None:
        self._around = around
        self._desk = Desk(around, model_name, FORWARDED)
        self._services = services
        self._space_grpc = space_grpc
        # By space: as many as the name has stood for while this process lives.
        self._channels: dict[str, aio.Channel] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The method's own handler, or one that passes the call on."""
        handler = await continuation(handler_call_details)
        space = self._around.readiness.elsewhere()
        method = handler_call_details.method
        if handler is None or space is None or method.split("/")[1] not in self._services:
            return handler
        if not handler.request_streaming:
            return grpc.unary_unary_rpc_method_handler(partial(self._unary, method, space))
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, method, space))
        return grpc.stream_unary_rpc_method_handler(partial(self._collected, method, space))

    async def close(self) -> None:
        """End what is still passed on."""
        for channel in self._channels.values():
            await channel.close()

    async def _unary(self, method: str, space: str, message: bytes, context: Context) -> bytes:
        async def run(channel: Channel, caller: Caller) -> bytes:
            timeout = self._around.readiness.service().batching.request_timeout_seconds
            left = _left(caller)
            timeout = timeout if left is None else min(timeout, left)
            call = channel.unary_unary(method)(message, metadata=_metadata(caller), timeout=timeout)
            return await _one_answer(call, context)

        return await self._pass_on(space, context, len(message), run)

    async def _collected(
        self, method: str, space: str, messages: AsyncIterator[bytes], context: Context
    ) -> bytes:
        async def run(channel: Channel, caller: Caller) -> bytes:
            call = channel.stream_unary(method)(messages, metadata=_metadata(caller), timeout=_left(caller))
            return await _one_answer(call, context)

        return await self._pass_on(space, context, 0, run)

    async def _stream(
        self, method: str, space: str, messages: AsyncIterator[bytes], context: Context
    ) -> None:
        async def run(channel: Channel, caller: Caller) -> None:
            call = channel.stream_stream(method)(messages, metadata=_metadata(caller), timeout=_left(caller))
            await context.send_initial_metadata(_kept(await call.initial_metadata()))
            async for answer in call:
                await context.write(answer)

        await self._pass_on(space, context, 0, run)

    async def _pass_on(
        self,
        space: str,
        context: Context,
        size: int,
        run: Callable[[Channel, Caller], Awaitable[T]],
    ) -> T:
        """size: bytes that are held meanwhile. Ends the call with the status of the other side where that refuses."""
        async with self._desk.called(context) as caller:
            with self._desk.counted(caller), self._desk.reserved(size):
                try:
                    return await run(await self._reached(space), caller)
                except aio.AioRpcError as error:
                    refusal = error
            trailers = tuple(_kept(refusal.trailing_metadata()))
            await context.abort(refusal.code(), refusal.details() or "", trailers)
            raise refusal  # not reached: the line before raises

    async def _reached(self, space: str) -> aio.Channel:
        """A channel to the space's own name. Raises NotReady when that cannot be reached."""
        address = in_place(self._space_grpc, space)
        if space not in self._channels:
            self._channels[space] = aio.insecure_channel(address, options=_OPTIONS)
        channel = self._channels[space]
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await channel.channel_ready()
        except TimeoutError as error:
            log.warning("a call could not be passed on: %s cannot be reached", address)
            raise NotReady(
                f"this name now stands for vector space {space}, which cannot be reached; try again"
            ) from error
        return channel


async def _one_answer(call: Any, context: Context) -> bytes:
    await context.send_initial_metadata(_kept(await call.initial_metadata()))
    answer: bytes = await call
    return answer


def _left(caller: Caller) -> float | None:
    """Seconds; None where the client set no deadline."""
    return caller.context.time_remaining()


def _metadata(caller: Caller) -> Pairs:
    """The client's, under the request's id."""
    return [
        *(pair for pair in _kept(caller.context.invocation_metadata()) if pair[0] != "x-request-id"),
        ("x-request-id", caller.request_id),
    ]


def _kept(metadata: Any) -> Pairs:
    return [(name, value) for name, value in metadata or () if not name.startswith(_OF_THE_CONNECTION)]
