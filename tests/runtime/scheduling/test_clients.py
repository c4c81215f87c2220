"""Rates of clients: what a minute allows, and what one client's use means for others."""

from __future__ import annotations

import pytest

from embedserve_runtime.errors import RateLimited
from embedserve_runtime.scheduling.clients import MAX_BUCKETS, Client, RateLimiter


def count_admitted(limiter: RateLimiter, client: Client, tokens: int, times: list[float]) -> int:
    admitted = 0
    for now in times:
        try:
            limiter.check(client, tokens, now)
        except RateLimited:
            continue
        limiter.take(client, tokens, now)
        admitted += 1
    return admitted


@pytest.mark.parametrize(
    ("client", "tokens", "times", "want"),
    [
        pytest.param(Client("c", 60), 1, [0.0] * 100, 60, id="a minute's requests at once"),
        pytest.param(Client("c", 60), 1, [n / 10 for n in range(1_200)], 60 + 119, id="then one a second"),
        pytest.param(Client("c", None, 1_000), 100, [0.0] * 20, 10, id="a minute's tokens at once"),
        pytest.param(Client("c", 5, 1_000), 100, [0.0] * 20, 5, id="whichever ends first"),
        pytest.param(Client("c"), 10**9, [0.0] * 20, 20, id="without rates anything"),
        pytest.param(
            Client("c", None, 100), 300, [0.0, 60.0, 119.0, 180.0], 2, id="a large request leaves a debt"
        ),
    ],
)
def test_what_is_admitted(client: Client, tokens: int, times: list[float], want: int) -> None:
    assert count_admitted(RateLimiter(), client, tokens, times) == want


def test_the_error_says_when_the_next_request_is_admitted() -> None:
    limiter, client = RateLimiter(), Client("search", None, 600)
    limiter.take(client, 600, 0.0)
    with pytest.raises(RateLimited, match="'search' may send 600 tokens a minute to a replica") as caught:
        limiter.check(client, 100, 0.0)
    assert caught.value.retry_after == pytest.approx(10.0)
    limiter.check(client, 100, caught.value.retry_after)


def test_a_request_that_one_rate_refuses_uses_up_nothing_of_the_other() -> None:
    limiter, client = RateLimiter(), Client("c", 2, 100)
    limiter.take(client, 100, 0.0)
    for _ in range(10):
        with pytest.raises(RateLimited, match="tokens"):
            limiter.check(client, 100, 0.0)
    limiter.check(client, 100, 60.0)


def test_clients_do_not_use_each_others_rates() -> None:
    limiter = RateLimiter()
    assert count_admitted(limiter, Client("one", 3), 1, [0.0] * 10) == 3
    assert count_admitted(limiter, Client("other", 3), 1, [0.0] * 10) == 3


def test_a_rate_that_was_changed_counts_at_once() -> None:
    limiter = RateLimiter()
    assert count_admitted(limiter, Client("c", 3), 1, [0.0] * 10) == 3
    assert count_admitted(limiter, Client("c", 5), 1, [0.0] * 10) == 5


def test_names_that_never_end_take_a_bounded_memory() -> None:
    limiter = RateLimiter()
    for number in range(MAX_BUCKETS + 100):
        limiter.take(Client(f"client-{number}", 1), 1, 0.0)
    assert len(limiter._buckets) == MAX_BUCKETS
