"""Reading request bodies within bounds: of one body, and of all bodies held at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from embedserve_runtime.api.asgi import ClientGone, Receive
from embedserve_runtime.api.errors import BodyTooLarge
from embedserve_runtime.errors import Overloaded

# What a request costs beside its body, so that many small ones are bounded too.
LEAST_RESERVED = 4_096
RETRY_SECONDS = 1.0


@dataclass(slots=True)
class Intake:
    """max_bytes: of one body. max_pending_bytes: of all requests from their first byte to their answer."""

    max_bytes: int
    max_pending_bytes: int
    pending: int = 0

    def reserve(self, count: int) -> None:
        if self.pending + count > self.max_pending_bytes:
            raise Overloaded(f"{self.pending} bytes of requests are being worked on", RETRY_SECONDS)
        self.pending += count

    def release(self, count: int) -> None:
        self.pending -= count


class BodyReader:
    """Reads one body. `reserved` bytes have to be released when the request is answered."""

    __slots__ = ("_intake", "_receive", "reserved")

    def __init__(self, intake: Intake, receive: Receive) -> None:
        self._intake = intake
        self._receive = receive
        self.reserved = 0

    async def read(self, headers: Mapping[bytes, bytes]) -> bytes:
        """Raises BodyTooLarge, Overloaded, ClientGone.

        Room is taken for what has come in, not for what is announced: announcing costs a client nothing.
        """
        announced = int(headers.get(b"content-length", 0))
        if announced > self._intake.max_bytes:
            if b"expect" not in headers:
                await self._discard()
            raise self._too_large()
        self._reserve(LEAST_RESERVED)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            if chunk := message.get("body", b""):
                size += len(chunk)
                if size > self._intake.max_bytes:
                    await self._discard()
                    raise self._too_large()
                if size > self.reserved:
                    self._reserve(size - self.reserved)
                chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def release(self) -> None:
        self._intake.release(self.reserved)
        self.reserved = 0

    async def _discard(self) -> None:
        """Let a client finish sending, up to another body's worth, so that it reads the answer."""
        left = self._intake.max_bytes
        while left > 0:
            message = await self._receive()
            left -= len(message.get("body", b""))
            if not message.get("more_body", False):
                return

    def _reserve(self, count: int) -> None:
        self._intake.reserve(count)
        self.reserved += count

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"the body is larger than {self._intake.max_bytes} bytes; send fewer inputs at a time"
        )
