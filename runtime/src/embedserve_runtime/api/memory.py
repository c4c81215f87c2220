"""Bounds the bytes of all pending requests of the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from embedserve_runtime.errors import Overloaded

MIN_REQUEST_BYTES = 4_096
"""The least that a request counts, so that many small ones are bounded too."""
RETRY_SECONDS = 1.0


@dataclass(slots=True)
class RequestMemory:
    """Counts the bytes of requests from their first byte to their answer.

    max_body_bytes: the largest body of one request. max_pending_bytes: the bytes of all requests at the same time.

    No client has all of it: where clients are told apart, each may hold as much as is still free, as in the queue,
    which is half of it for one. A request that is its client's only one may take all that is free.
    """

    max_body_bytes: int
    max_pending_bytes: int
    pending: int = 0
    _reserved: Counter[str] = field(default_factory=Counter)

    def lower_bound(self, max_pending_bytes: int) -> None:
        """Lower the bound for all requests; one body of the largest size always has room."""
        least = self.max_body_bytes + MIN_REQUEST_BYTES
        self.max_pending_bytes = min(self.max_pending_bytes, max(least, max_pending_bytes))

    def reserve(self, count: int, client: str | None = None, own: int = 0) -> None:
        """Reserve `count` bytes. Raises Overloaded where they do not fit.

        client: whose request it is, None where clients are not told apart. own: what the request has reserved before.
        """
        free = self.max_pending_bytes - self.pending
        if count > free:
            raise Overloaded(f"{self.pending} bytes of requests are being worked on", RETRY_SECONDS)
        if client is not None:
            reserved = self._reserved[client]
            if reserved > own and reserved + count > free:
                raise Overloaded(
                    f"client {client!r} has its share of the memory: {reserved} bytes of its requests are being "
                    "worked on",
                    RETRY_SECONDS,
                )
            self._reserved[client] += count
        self.pending += count

    def release(self, count: int, client: str | None = None) -> None:
        """Release bytes that were reserved, for the same client."""
        self.pending -= count
        if client is not None:
            self._reserved[client] -= count
            if not self._reserved[client]:
                del self._reserved[client]

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Reserve bytes for the body of a `with`. Raises Overloaded."""
        self.reserve(count)
        try:
            yield
        finally:
            self.release(count)
