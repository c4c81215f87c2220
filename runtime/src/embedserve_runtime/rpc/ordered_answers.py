"""Gives answers in the order of their requests, several of which are processed concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


async def answer_in_order(
    requests: AsyncIterator[Q], answer: Callable[[Q], Coroutine[Any, Any, A]], window: int
) -> AsyncGenerator[A]:
    """Answer requests as they come, several concurrently, and yield the answers in the order of the requests.

    window: how many requests may be read whose answers have not been consumed yet.

    The first failure is raised in its turn: the answers before it are yielded, none after it. Closing the generator
    cancels what is still running.
    """
    tasks: asyncio.Queue[asyncio.Task[A] | None] = asyncio.Queue()
    running: set[asyncio.Task[A]] = set()
    room = asyncio.Semaphore(window)

    async def read() -> None:
        await room.acquire()
        async for request in requests:
            task = asyncio.create_task(answer(request))
            running.add(task)
            tasks.put_nowait(task)
            await room.acquire()

    reader = asyncio.create_task(read())
    reader.add_done_callback(lambda _: tasks.put_nowait(None))
    try:
        while (task := await tasks.get()) is not None:
            answered = await task
            running.discard(task)
            yield answered
            room.release()
        await reader
    finally:
        reader.cancel()
        for task in running:
            task.cancel()
        await asyncio.gather(reader, *running, return_exceptions=True)
