"""Runs a query and its documents at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from embedserve_runtime.service.values import Timings, Usage

T = TypeVar("T")

# Products of numbers up to which the event loop computes a score itself.
INLINE_PRODUCTS = 1_000_000


async def run_concurrently(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, T]) -> tuple[T, T]:
    """Run two coroutines at once and return both results; the first failure cancels the other."""
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


def join_usage(query: Usage, documents: Usage) -> Usage:
    """Times are those of the longer one: both run at once."""
    ours, theirs = query.timings, documents.timings
    timings = Timings(
        max(ours.total, theirs.total),
        max(ours.tokenize, theirs.tokenize),
        max(ours.queue, theirs.queue),
        max(ours.engine, theirs.engine),
    )
    return Usage([*query.lengths, *documents.lengths], query.characters + documents.characters, timings)
