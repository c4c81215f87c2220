"""Bounds the bytes of all pending requests of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from embedserve_runtime.errors import Overloaded

MIN_REQUEST_BYTES = 4_096
"""The least that a request counts, so that many small ones are bounded too."""
RETRY_SECONDS = 1.0


@dataclass(slots=True)
class RequestMemory:
    """Counts the bytes of requests from their first byte to their answer.

    max_body_bytes: the largest body of one request. max_pending_bytes: the bytes of all requests at the same time.
    """

    max_body_bytes: int
    max_pending_bytes: int
    pending: int = 0

    def reserve(self, count: int) -> None:
        """Reserve `count` bytes. Raises Overloaded where they do not fit."""
        if self.pending + count > self.max_pending_bytes:
            raise Overloaded(f"{self.pending} bytes of requests are being worked on", RETRY_SECONDS)
        self.pending += count

    def release(self, count: int) -> None:
        self.pending -= count

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Reserve bytes for the body of a `with`. Raises Overloaded."""
        self.reserve(count)
        try:
            yield
        finally:
            self.release(count)
