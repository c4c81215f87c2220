"""Limits of the requests to a host: one limiter for each host, shared by every file that is fetched from it.

A host that answers 429 (or 503 with Retry-After) is left alone by all for as long as it says, and then asked by one at
a time until it answers again: its limit is on us, not on a file.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

from embedserve_runtime.errors import SourceUnavailable

# RateLimit: "api";r=0;t=55 - the Hub's header of the draft standard; t: seconds until the limit begins anew.
_RESET = re.compile(r";\s*t\s*=\s*(\d+)")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number and the delays of retries.

    max_attempts: attempts in a row without a byte of progress. max_listing_attempts: attempts to list the files.
    first_pause_s: doubled each time, up to max_pause_s. max_wait_s: of one Retry-After. max_total_wait_s: of all of
    them together, for one host and one fetch.
    """

    max_attempts: int = 6
    max_listing_attempts: int = 4
    first_pause_s: float = 0.5
    max_pause_s: float = 10.0
    default_wait_s: float = 5.0
    max_wait_s: float = 300.0
    max_total_wait_s: float = 900.0
    connect_s: float = 10.0
    read_s: float = 30.0

    def compute_pause_s(self, failures: int) -> float:
        """Return the pause before the next attempt, with jitter, so that many clients do not come back together."""
        pause: float = min(self.first_pause_s * 2.0 ** (failures - 1), self.max_pause_s)
        return pause * random.uniform(0.5, 1.0)


@dataclass(slots=True)
class _HostLimiter:
    """The requests that run to one host, and until when it is left alone."""

    limit: int
    running: int = 0
    closed_until: float = 0.0
    waited_s: float = 0.0
    changed: threading.Condition = field(default_factory=threading.Condition)


class HostLimiters:
    """The limiters of one fetch.

    max_requests: requests at once to one host.
    """

    def __init__(
        self, retry_policy: RetryPolicy, max_requests: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.retry_policy = retry_policy
        self._max_requests = max_requests
        self._clock = clock
        self._limiters: dict[str, _HostLimiter] = {}
        self._lock = threading.Lock()

    @contextmanager
    def request_slot(self, host: str, stopped: threading.Event) -> Iterator[None]:
        """Hold a slot while a request runs; waits until there is one. With `stopped` set it does not wait."""
        limiter = self._get_limiter(host)
        with limiter.changed:
            while not stopped.is_set():
                pause = limiter.closed_until - self._clock()
                if pause <= 0 and limiter.running < limiter.limit:
                    break
                limiter.changed.wait(min(pause, 1.0) if pause > 0 else 1.0)
            limiter.running += 1
        try:
            yield
        finally:
            with limiter.changed:
                limiter.running -= 1
                limiter.changed.notify_all()

    def record_answer(self, host: str) -> None:
        """Allow one more request at once, up to the bound, since the host answers."""
        limiter = self._get_limiter(host)
        with limiter.changed:
            limiter.limit = min(limiter.limit + 1, self._max_requests)
            limiter.changed.notify_all()

    def record_refusal(self, host: str, headers: Mapping[str, str]) -> None:
        """Leave the host alone for as long as it asks. Raises SourceUnavailable when that has been too long in all."""
        limiter = self._get_limiter(host)
        requested = parse_retry_after_s(headers)
        wait = (
            self.retry_policy.default_wait_s
            if requested is None
            else max(requested, self.retry_policy.first_pause_s)
        )
        pause = min(wait, self.retry_policy.max_wait_s)
        with limiter.changed:
            now = self._clock()
            # Answers to requests that were already in flight ask for the same pause, not for another one.
            limiter.waited_s += max(0.0, now + pause - max(limiter.closed_until, now))
            limiter.closed_until = max(limiter.closed_until, now + pause)
            limiter.limit = 1
            waited = limiter.waited_s
        if waited > self.retry_policy.max_total_wait_s or (
            requested is not None and requested > self.retry_policy.max_wait_s
        ):
            raise SourceUnavailable(
                f"{host} limits how much may be fetched: it asks to wait "
                f"{pause if requested is None else requested:.0f} s more, after {max(0.0, waited - pause):.0f} s of "
                "waiting; try again later, or set a token"
            )

    def _get_limiter(self, host: str) -> _HostLimiter:
        with self._lock:
            return self._limiters.setdefault(host, _HostLimiter(limit=self._max_requests))


def parse_retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Parse the seconds to wait from `Retry-After` (a number or a date), else from the Hub's rate-limit headers."""
    lowered = {name.lower(): value for name, value in headers.items()}
    value = lowered.get("retry-after", "").strip()
    if value.isdigit():
        return float(value)
    if value:
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except ValueError:
            return None
    reset = _RESET.search(lowered.get("ratelimit", ""))
    return float(reset[1]) if reset is not None else None
