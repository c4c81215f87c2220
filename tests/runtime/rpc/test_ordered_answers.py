"""Answers in the order of their requests, however they end, within the window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from embedserve_runtime.rpc.ordered_answers import answer_in_order


class Work:
    """Numbers as requests, each of which is answered when the test says so."""

    def __init__(self, count: int) -> None:
        self.answers: list[asyncio.Future[int]] = [asyncio.Future() for _ in range(count)]
        self.read = 0
        self.cancelled: set[int] = set()

    async def requests(self) -> AsyncIterator[int]:
        for number in range(len(self.answers)):
            self.read += 1
            yield number

    async def answer(self, number: int) -> int:
        try:
            return await self.answers[number]
        except asyncio.CancelledError:
            self.cancelled.add(number)
            raise


async def settle() -> None:
    """Everything that can go on without a test's doing has gone on."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_answers_keep_the_order_of_their_requests() -> None:
    work = Work(5)
    for number in (3, 1, 4, 0, 2):
        asyncio.get_running_loop().call_soon(work.answers[number].set_result, number * 10)
    assert [answer async for answer in answer_in_order(work.requests(), work.answer, 5)] == [
        0,
        10,
        20,
        30,
        40,
    ]


async def test_no_more_is_read_than_the_window_until_answers_are_taken() -> None:
    work = Work(10)
    async with aclosing(answer_in_order(work.requests(), work.answer, 3)) as answers:
        first = asyncio.ensure_future(anext(answers))
        await settle()
        assert work.read == 3
        work.answers[0].set_result(0)
        work.answers[1].set_result(1)
        assert await first == 0
        await settle()
        assert work.read == 3  # the answer is being sent
        assert await anext(answers) == 1
        await settle()
        assert work.read == 4


async def test_a_failure_comes_in_its_turn_and_ends_the_work_behind_it() -> None:
    work = Work(4)
    work.answers[1].set_exception(ValueError("the second"))
    work.answers[0].set_result(0)
    answers = answer_in_order(work.requests(), work.answer, 4)
    assert await anext(answers) == 0
    with pytest.raises(ValueError, match="the second"):
        await anext(answers)
    assert work.cancelled == {2, 3}


async def test_closing_it_cancels_all_that_is_worked_on() -> None:
    work = Work(4)
    answers = answer_in_order(work.requests(), work.answer, 3)
    first = asyncio.ensure_future(anext(answers))
    await settle()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert work.cancelled == {0, 1, 2}
    assert work.read == 3


async def test_requests_that_break_off_raise_after_the_answers_before() -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise ConnectionError("gone")

    async def answer(number: int) -> int:
        return number

    answers = answer_in_order(broken(), answer, 3)
    assert await anext(answers) == 1
    with pytest.raises(ConnectionError, match="gone"):
        await anext(answers)


async def test_no_requests_give_no_answers() -> None:
    assert [answer async for answer in answer_in_order(Work(0).requests(), Work(0).answer, 3)] == []
