"""Clients that share a server: who they are, and the rates that each of them may use."""

from __future__ import annotations

import math
from collections import OrderedDict

from msgspec import Struct

from embedserve_runtime.errors import RateLimited

# Buckets that are kept. Of more clients than that, the one that has been quiet for longest gets a full bucket again.
MAX_BUCKETS = 10_000
_MINUTE = 60.0


class Client(Struct, frozen=True):
    """A client, as it is told apart from others, with its limits.

    name: that of its API key, or what a gateway's header says, never a secret. requests_per_minute, tokens_per_minute:
    what it may send to this process; None for no limit. is_part: whether this is a further part of a request that was
    held against the rates before.
    """

    name: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    is_part: bool = False


class TokenBucket:
    """A bucket that holds what a client may use in a minute, and is filled at that rate (ITU-T I.371, Turner 1986)."""

    __slots__ = ("_level", "_since", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._since = now

    def compute_wait(self, amount: int, now: float) -> float:
        """Return the seconds until `amount` may be taken; 0 when it may be taken now.

        An amount above that of a minute waits for a full bucket, and leaves it in debt.
        """
        self._level = min(self.per_minute, self._level + (now - self._since) * self.per_minute / _MINUTE)
        self._since = now
        lacking = min(amount, self.per_minute) - self._level
        return max(0.0, lacking * _MINUTE / self.per_minute)

    def take(self, amount: int) -> None:
        self._level -= amount


class RateLimiter:
    """The buckets of the clients. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[str, str, int], TokenBucket] = OrderedDict()

    def check(self, client: Client, tokens: int, now: float) -> None:
        """Raise RateLimited where the client has used up its rate for a request of that many tokens."""
        if client.is_part:
            return
        for unit, bucket, amount in self._find_buckets(client, tokens, now):
            if wait := bucket.compute_wait(amount, now):
                raise RateLimited(
                    f"client {client.name!r} may send {bucket.per_minute} {unit} a minute to a replica; "
                    f"send the next request in {math.ceil(wait)} s",
                    wait,
                )

    def take(self, client: Client, tokens: int, now: float) -> None:
        """Count the tokens of a request."""
        for _, bucket, amount in self._find_buckets(client, tokens, now):
            bucket.take(amount)

    def _find_buckets(self, client: Client, tokens: int, now: float) -> list[tuple[str, TokenBucket, int]]:
        """Return for each limited unit its name, the client's bucket, and the amount of the request."""
        requests = 0 if client.is_part else 1
        amounts = (
            ("requests", client.requests_per_minute, requests),
            ("tokens", client.tokens_per_minute, tokens),
        )
        return [
            (unit, self._find_bucket((client.name, unit, per_minute), now), amount)
            for unit, per_minute, amount in amounts
            if per_minute is not None
        ]

    def _find_bucket(self, key: tuple[str, str, int], now: float) -> TokenBucket:
        """Return the bucket of a client and unit; one whose limit has changed is a new one."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(key[2], now)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        return bucket
