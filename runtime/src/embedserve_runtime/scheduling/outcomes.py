"""Turns callbacks into coroutines that wait for an outcome and abort their request when they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Started = TypeVar("Started")


async def wait_for_outcome(
    start: Callable[[Callable[[T | Exception], None]], Started], abort: Callable[[Started], None]
) -> T:
    """Start something with a callback for its outcome, and wait for that. Raises an outcome that is an exception.

    abort: called with what `start` gave, when nobody waits any more and after the outcome.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def settle(outcome: T | Exception) -> None:
        if future.done():  # cancelled, and its caller has not had a turn yet
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    started = start(settle)
    try:
        return await future
    finally:
        abort(started)
