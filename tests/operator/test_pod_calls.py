"""What the operator makes of what pods answer, and of pods that do not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from embedserve_operator.plan import Notice, Question
from embedserve_operator.pod_calls import PodCalls
from embedserve_operator.world import Fetcher, FetchProgress, Key, PodCheck, PodFacts, Said

KEY = Key("search", "docs")
SPACE, OTHER = "vs1-0123456789abcdef0123", "vs1-fedcba9876543210fedc"
NOBODY = "127.0.0.3"
"""Where nothing listens."""


def pod(address: str = "127.0.0.2", run: str = "a/0") -> PodFacts:
    return PodFacts("docs-a", "r", "t", "c", "Ready", None, None, address=address, run=run)


@asynccontextmanager
async def answering(content: object, status: int = 200) -> AsyncIterator[tuple[PodCalls, list[str]]]:
    """Calls to pods of which one answers everything like this; and what it was asked."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(f"{request.method} {request.path} {await request.text()}".strip())
        if isinstance(content, str):
            return web.Response(text=content, status=status)
        return web.json_response(content, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.2", 0).start()
    try:
        async with PodCalls(tell_timeout=5, check_timeout=5, port=runner.addresses[0][1]) as calls:
            yield calls, asked
    finally:
        await runner.cleanup()


ANSWERS = [
    pytest.param(
        {"vector_space": SPACE, "dimensions": 384, "problems": []}, 200, PodCheck(SPACE, 384, ""), id="sound"
    ),
    pytest.param(
        {"vector_space": SPACE, "dimensions": 384, "problems": ["one", "two"]},
        503,
        PodCheck(SPACE, 384, "one; two"),
        id="unsound",
    ),
    pytest.param(
        {"error": "model gave NaN"},
        500,
        PodCheck(None, None, "its self-check answered 500: model gave NaN"),
        id="a failure",
    ),
    pytest.param(
        "<html>", 200, PodCheck(None, None, "its self-check answered 200: <html>"), id="somebody else"
    ),
]


@pytest.mark.parametrize(("content", "status", "want"), ANSWERS)
async def test_an_answer_is_remembered_as_a_check(content: object, status: int, want: PodCheck) -> None:
    async with answering(content, status) as (calls, asked):
        passed = await calls.ask(KEY, (Question(pod()),))
        assert passed is (not want.problem)
        assert calls.said(KEY) == {"a/0": Said(check=want)}
        assert asked == ["GET /selfcheck"]


async def test_a_pod_that_cannot_be_reached_has_not_proved_anything() -> None:
    async with answering({}) as (calls, _):
        assert not await calls.ask(KEY, (Question(pod(NOBODY)),))
        check = calls.said(KEY)["a/0"].check
    assert check is not None
    assert "management port cannot be reached" in check.problem


async def test_those_who_must_know_are_told_first_and_without_them_nobody_is() -> None:
    must, other = Notice(pod(NOBODY, "b/0"), SPACE, must=True), Notice(pod(), SPACE, must=False)
    async with answering({"vector_space": OTHER, "current": False}) as (calls, asked):
        assert await calls.tell(KEY, (must, other)) == "TooFew"
        assert asked == []
        assert await calls.tell(KEY, (Notice(pod(), SPACE, must=True),)) == "All"
        assert asked == ['PUT /current {"vector_space": "vs1-0123456789abcdef0123"}']
        assert await calls.tell(KEY, (Notice(pod(NOBODY, "b/0"), SPACE, must=False), other)) == "Enough"
        assert calls.said(KEY) == {"a/0": Said(told=SPACE)}


async def test_what_passed_with_runs_that_have_ended_is_forgotten() -> None:
    async with answering({"vector_space": OTHER, "current": False}) as (calls, _):
        for run in ("a/0", "a/1"):
            await calls.tell(KEY, (Notice(pod(run=run), SPACE, must=False),))
        calls.forget(KEY, but=frozenset({"a/1"}))
        assert set(calls.said(KEY)) == {"a/1"}
        calls.forget(KEY)
        assert calls.said(KEY) == {}


FETCHER = Fetcher("docs-fetch-1-x", "127.0.0.2", "f/0")
STATE = {
    "phase": "fetching",
    "bytesDone": 41,
    "bytesTotal": 91,
    "bytesPerSecond": 8,
    "secondsRemaining": 6,
}


async def test_how_far_a_fetch_is_is_remembered_and_only_news_are_news() -> None:
    want = FetchProgress("fetching", 41, 91, 8, 6)
    async with answering(STATE) as (calls, asked):
        assert await calls.ask_progress(KEY, (FETCHER,))
        assert calls.said(KEY) == {"f/0": Said(progress=want)}
        assert not await calls.ask_progress(KEY, (replace(FETCHER, progress=want),))
        assert asked == ["GET /progress"] * 2


@pytest.mark.parametrize(
    ("content", "status"), [("<html>", 200), (STATE, 404), ({"phase": 3}, 200), ([], 200)], ids=str
)
async def test_an_answer_that_says_nothing_of_a_fetch_is_no_news(content: object, status: int) -> None:
    async with answering(content, status) as (calls, _):
        assert not await calls.ask_progress(KEY, (FETCHER, replace(FETCHER, address=NOBODY)))
        assert calls.said(KEY) == {}
