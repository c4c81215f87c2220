"""A query and its documents on their way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from embedserve_runtime.service.values import Effort, Timings

T = TypeVar("T")

# Products of numbers up to which the event loop computes a score itself.
INLINE_PRODUCTS = 1_000_000


async def together(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, T]) -> tuple[T, T]:
    """Both results; the first failure cancels the other."""
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


def joined(query: Effort, documents: Effort) -> Effort:
    """Times are those of the longer one: both run at once."""
    ours, theirs = query.timings, documents.timings
    timings = Timings(
        max(ours.total, theirs.total),
        max(ours.tokenize, theirs.tokenize),
        max(ours.queue, theirs.queue),
        max(ours.engine, theirs.engine),
    )
    return Effort([*query.lengths, *documents.lengths], query.characters + documents.characters, timings)
