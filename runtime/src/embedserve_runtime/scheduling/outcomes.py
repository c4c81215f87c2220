"""Turns callbacks into coroutines that wait for an outcome and withdraw their request when they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Ticket = TypeVar("Ticket")


async def wait_for_outcome(
    start: Callable[[Callable[[T | Exception], None]], Ticket], withdraw: Callable[[Ticket], None]
) -> T:
    """Start something with a callback for its outcome, and wait for that. Raises an outcome that is an exception.

    withdraw: called with what `start` gave, when nobody waits any more and after the outcome.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def settle(outcome: T | Exception) -> None:
        if future.done():  # cancelled, and its caller has not had a turn yet
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    ticket = start(settle)
    try:
        return await future
    finally:
        withdraw(ticket)
