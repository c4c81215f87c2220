"""What the process says of its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from embedserve_operator.process.operator import log_loop_error


@asynccontextmanager
async def block() -> AsyncIterator[None]:
    """Behave as a stream of kopf's does: it waits for something when it is left."""
    waiter: asyncio.Future[None] = asyncio.Future()
    try:
        yield
    finally:
        with suppress(asyncio.CancelledError):
            waiter.cancel()
            await waiter


async def stream() -> AsyncIterator[int]:
    async with block():
        yield 1


def end_with_open_streams(count: int) -> list[AsyncIterator[int]]:
    """A loop that ends while streams are open."""

    async def open_all() -> list[AsyncIterator[int]]:
        asyncio.get_running_loop().set_exception_handler(log_loop_error)
        streams = [stream() for _ in range(count)]
        for iterator in streams:
            await anext(iterator)
        return streams

    return asyncio.run(open_all())


def test_streams_that_kopf_leaves_open_are_no_error_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    end_with_open_streams(20)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_other_errors_of_the_loop_are_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_loop_error)
        called = loop.create_future()

        def wrong() -> None:
            called.set_result(None)
            raise ZeroDivisionError

        loop.call_soon(wrong)
        await called

    asyncio.run(fail())
    assert "ZeroDivisionError" in caplog.text
