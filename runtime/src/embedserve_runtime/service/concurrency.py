"""Runs the embedding of a query and of its documents concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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


def merge_usage(query: RequestUsage, documents: RequestUsage) -> RequestUsage:
    """Merge the usage of a query and its documents. Both run concurrently, so times are those of the longer one."""
    query_timings, document_timings = query.timings, documents.timings
    timings = Timings(
        max(query_timings.total, document_timings.total),
        max(query_timings.tokenize, document_timings.tokenize),
        max(query_timings.queue, document_timings.queue),
        max(query_timings.engine, document_timings.engine),
    )
    return RequestUsage(
        [*query.lengths, *documents.lengths], query.characters + documents.characters, timings
    )
