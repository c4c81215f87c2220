"""The memory that messages take, which is counted together with the bodies of HTTP requests.

A message is counted from the moment it is received until it is answered. A call with one answer is refused when there
is no room. A stream waits instead: it reads no further message, and HTTP/2's flow control makes its client wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from embedserve_runtime.api.memory import MIN_REQUEST_BYTES, RETRY_SECONDS, RequestMemory
from embedserve_runtime.errors import Overloaded


class MessageMemory:
    """The memory for messages of all calls of the process."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self._released = asyncio.Event()

    @property
    def max_message_bytes(self) -> int:
        return self._memory.max_body_bytes

    @contextmanager
    def call(self) -> Iterator[CallMemory]:
        """The memory of a call with one answer, released at the end."""
        memory = CallMemory(self)
        try:
            yield memory
        finally:
            self.release(memory.held)

    @contextmanager
    def stream(self) -> Iterator[StreamMemory]:
        """The memory of a stream of answers; what it still holds at its end is released."""
        memory = StreamMemory(self)
        try:
            yield memory
        finally:
            self.release(memory.held)

    def check(self) -> None:
        """Raises Overloaded when there is no room for even a small message."""
        self.reserve(MIN_REQUEST_BYTES)
        self._memory.release(MIN_REQUEST_BYTES)

    def reserve(self, size: int) -> None:
        """Raises Overloaded."""
        self._memory.reserve(size)

    def add(self, size: int) -> None:
        """Count what is already in memory, even beyond the bound."""
        self._memory.pending += size

    def release(self, size: int) -> None:
        self._memory.release(size)
        self._released.set()

    def has_room(self, size: int) -> bool:
        return self._memory.pending + size <= self._memory.max_pending_bytes

    def check_fits_alone(self, size: int) -> None:
        """Raises Overloaded for a message that is larger than the bound for all of them."""
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
    """The memory that one call with one answer holds."""

    def __init__(self, memory: MessageMemory) -> None:
        self._memory = memory
        self.held = 0

    def grow_to(self, size: int) -> None:
        """Raises Overloaded when there is no room for messages of `size` bytes in all."""
        wanted = max(size, MIN_REQUEST_BYTES)
        if wanted > self.held:
            self._memory.reserve(wanted - self.held)
            self.held = wanted


class StreamMemory:
    """The memory that the messages of one stream hold.

    One message of every stream may be in work, whatever the others hold, so no stream waits for ever. That message is
    in memory as soon as it has been received, so it is counted even where it goes beyond the bound.
    """

    def __init__(self, memory: MessageMemory) -> None:
        self._memory = memory
        self._messages = 0
        self._largest = MIN_REQUEST_BYTES
        self.held = 0

    async def received(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Each message, counted. `answered` has to be told of each.

        The size of the next message is not known before it is there; it is taken to be that of the largest so far.
        """
        while True:
            while self._messages and not self._memory.has_room(self._largest):
                # A message of this stream is in work, so there will be a release.
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
            self.held -= counted
            self._memory.release(counted)

    def _add(self, size: int) -> None:
        counted = max(size, MIN_REQUEST_BYTES)
        self._memory.add(counted)
        self.held += counted
        self._messages += 1
        self._largest = max(self._largest, counted)
