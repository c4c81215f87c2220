"""Bounds the memory of messages, together with the bodies of HTTP requests.

A message counts from the moment it is received until it is answered. A call with one answer is refused when there is no
room. A stream waits instead: it does not read another message, and HTTP/2's flow control makes its client wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from embedserve_runtime.api.memory import MIN_REQUEST_BYTES, RETRY_SECONDS, RequestMemory
from embedserve_runtime.errors import Overloaded
from embedserve_runtime.service.current_client import get_client_name


class MessageMemory:
    """The memory of the messages of all calls in the process."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self._released = asyncio.Event()

    @property
    def max_message_bytes(self) -> int:
        return self._memory.max_body_bytes

    @contextmanager
    def call(self) -> Iterator[CallMemory]:
        """Provide the memory of a call with one answer, released at its end."""
        memory = CallMemory(self)
        try:
            yield memory
        finally:
            self.release(memory.reserved, memory.client)

    @contextmanager
    def stream(self) -> Iterator[StreamMemory]:
        """Provide the memory of a stream of answers; what it still holds at its end is released."""
        memory = StreamMemory(self)
        try:
            yield memory
        finally:
            self.release(memory.reserved)

    def check(self) -> None:
        """Raise Overloaded when there is no room for even a small message."""
        self.reserve(MIN_REQUEST_BYTES)
        self._memory.release(MIN_REQUEST_BYTES)

    def reserve(self, size: int, client: str | None = None, own: int = 0) -> None:
        """Reserve `size` bytes for a client's call, which has reserved its `own` before. Raises Overloaded."""
        self._memory.reserve(size, client, own)

    def add(self, size: int) -> None:
        """Count what is in memory already, even beyond the bound."""
        self._memory.pending += size

    def release(self, size: int, client: str | None = None) -> None:
        self._memory.release(size, client)
        self._released.set()

    def has_room(self, size: int) -> bool:
        return self._memory.pending + size <= self._memory.max_pending_bytes

    def check_fits_alone(self, size: int) -> None:
        """Raise Overloaded for a message that is larger than the bound for all messages."""
        if size > self._memory.max_pending_bytes:
            raise Overloaded(
                f"a message of {size} bytes never has room in {self._memory.max_pending_bytes} bytes",
                RETRY_SECONDS,
            )

    async def wait_for_release(self) -> None:
        """Wait until a message has been answered. HTTP requests that are answered do not end the wait."""
        self._released.clear()
        await self._released.wait()


class CallMemory:
    """The memory that one call with one answer holds. client: whose it is, from its first message on."""

    def __init__(self, memory: MessageMemory) -> None:
        self._memory = memory
        self.client: str | None = None
        self.reserved = 0

    def grow_to(self, size: int) -> None:
        """Reserve memory for messages of `size` bytes in total. Raises Overloaded."""
        needed = max(size, MIN_REQUEST_BYTES)
        if not self.reserved:
            self.client = get_client_name()
        if needed > self.reserved:
            self._memory.reserve(needed - self.reserved, self.client, self.reserved)
            self.reserved = needed


class StreamMemory:
    """The memory that the messages of one stream hold.

    Each stream may work on one message, whatever the others hold, so no stream waits forever. That message is in memory
    as soon as it has been received, so it counts even if it exceeds the bound.
    """

    def __init__(self, memory: MessageMemory) -> None:
        self._memory = memory
        self._messages = 0
        self._largest = MIN_REQUEST_BYTES
        self.reserved = 0

    async def received(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield each message and count it. `answered` has to be entered for each.

        The size of the next message is not known before it arrives; it is assumed to be that of the largest so far.
        """
        while True:
            while self._messages and not self._memory.has_room(self._largest):
                # This stream works on a message, so there will be a release.
                await self._memory.wait_for_release()
            message = await anext(messages, None)
            if message is None:
                return
            self._add(len(message))
            yield message

    @contextmanager
    def answered(self, size: int) -> Iterator[None]:
        """Release a message of `size` bytes after it has been answered."""
        try:
            yield
        finally:
            counted = max(size, MIN_REQUEST_BYTES)
            self._messages -= 1
            self.reserved -= counted
            self._memory.release(counted)

    def _add(self, size: int) -> None:
        counted = max(size, MIN_REQUEST_BYTES)
        self._memory.add(counted)
        self.reserved += counted
        self._messages += 1
        self._largest = max(self._largest, counted)
