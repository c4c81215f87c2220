"""Reads request bodies within bounds of bytes and time, and cancels requests whose client disconnects."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embedserve_runtime.api.content_encoding import find_decoder
from embedserve_runtime.api.context import RequestContext, ServerContext, get_scope_context
from embedserve_runtime.api.errors import BodyTooLarge
from embedserve_runtime.api.memory import MIN_REQUEST_BYTES, RequestMemory
from embedserve_runtime.api.middleware.disconnect import ClientDisconnected, RequestWatch, RequestWatcher
from embedserve_runtime.service.current_client import get_client_name


class BodyMiddleware:
    """Passes requests to the application when their body has arrived completely.

    Bodies of requests that count as work are read here; those of others are left to uvicorn, which discards them, so
    that a full server still answers probes. The memory that a request has reserved is released when it is answered.
    """

    def __init__(self, app: ASGIApp, server: ServerContext) -> None:
        self._app = app
        self._memory = server.memory
        self._traces = server.tracer is not None
        self._watcher = RequestWatcher()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = get_scope_context(scope)
        if not context.is_work:
            await self._app(scope, receive, send)
            return
        watch = self._watcher.watch(receive)
        reader = _BodyReader(self._memory, receive, watch)
        try:
            context.body = await reader.read(context)
            watch.body_is_read()
            if self._traces:
                context.facts.read_seconds = context.seconds
            await self._app(scope, _replay(context.body, receive), send)
        except asyncio.CancelledError:
            if watch.cancel_reason is None:
                raise
            watch.task.uncancel()
            raise watch.cancel_reason from None
        finally:
            self._watcher.stop(watch)
            reader.release()


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body that has been read, and then what follows it."""
    is_given = False

    async def replay() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


class _BodyReader:
    """Reads one body. Its reserved memory has to be released when the request is answered."""

    __slots__ = ("_client", "_memory", "_receive", "_reserved", "_watch")

    def __init__(self, memory: RequestMemory, receive: Receive, watch: RequestWatch) -> None:
        self._memory = memory
        self._receive = receive
        self._watch = watch
        self._client = get_client_name()
        self._reserved = 0

    async def read(self, context: RequestContext) -> bytes:
        """Read the body. Raises BodyTooLarge, Overloaded, ClientDisconnected, UnsupportedEncoding or MalformedBody.

        Memory is reserved for what has arrived, not for what is announced: announcing costs a client nothing.
        """
        headers, max_bytes = context.headers, self._memory.max_body_bytes
        if int(headers.get(b"content-length", 0)) > max_bytes:
            raise self._too_large_error()
        decode = find_decoder(headers.get(b"content-encoding", b""))
        self._reserve(MIN_REQUEST_BYTES)
        context.is_body_wanted = True
        chunks: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            if chunk := message.get("body", b""):
                self._watch.received += len(chunk)
                if self._watch.received > max_bytes:
                    raise self._too_large_error()
                self._reserve_up_to(self._watch.received)
                chunks.append(chunk)
            if not message.get("more_body", False):
                break
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if decode is None:
            return body
        decoded = decode(body, max_bytes)
        self._reserve_up_to(len(decoded))
        return decoded

    def release(self) -> None:
        self._memory.release(self._reserved, self._client)
        self._reserved = 0

    def _reserve_up_to(self, size: int) -> None:
        if size > self._reserved:
            self._reserve(size - self._reserved)

    def _reserve(self, count: int) -> None:
        self._memory.reserve(count, self._client, self._reserved)
        self._reserved += count

    def _too_large_error(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"the body is larger than {self._memory.max_body_bytes} bytes; send fewer inputs at a time"
        )
