"""Runs the embedding of a query and of its documents concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from embedserve_runtime.service.types import RequestUsage, Timings

T = TypeVar("T")

# Scores of up to this many products are computed on the event loop.
MAX_INLINE_PRODUCTS = 1_000_000


async def run_concurrently(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, T]) -> tuple[T, T]:
    """Run two coroutines concurrently and return both results; the first failure cancels the other."""
    tasks = (asyncio.ensure_future(first), asyncio.ensure_future(second))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = next((task for task in tasks if task.done() and task.exception()), None)
        if failed:
            failed.result()
        return tasks[0].result(), tasks[1].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def merge_usages(usages: Sequence[RequestUsage]) -> RequestUsage:
    """Merge the usages of the parts of one answer, in their order, of which there is at least one.

    The parts run concurrently, so times are those of the longest.
    """
    timings = [usage.timings for usage in usages]
    return RequestUsage(
        lengths=[length for usage in usages for length in usage.lengths],
        characters=sum(usage.characters for usage in usages),
        timings=Timings(
            total=max(part.total for part in timings),
            tokenize=max(part.tokenize for part in timings),
            queue=max(part.queue for part in timings),
            engine=max(part.engine for part in timings),
        ),
        cached=sum(usage.cached for usage in usages),
        joined=sum(usage.joined for usage in usages),
    )
