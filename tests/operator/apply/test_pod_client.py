"""What the operator makes of what pods answer, and of pods that do not."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from embedserve_operator.apply.pod_client import PodClient
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.plan import PodMessage, SelfCheckRequest
from embedserve_operator.state.pods import FetchingPod, FetchProgress, PodReplies, PodState, SelfCheckResult

KEY = ObjectKey("search", "docs")
SPACE, OTHER = "vs1-0123456789abcdef0123", "vs1-fedcba9876543210fedc"
NOBODY = "127.0.0.3"
"""An address at which nothing listens."""


def pod(address: str = "127.0.0.2", run: str = "a/0") -> PodState:
    return PodState("docs-a", "r", "t", "c", "Ready", None, None, address=address, run_id=run)


@asynccontextmanager
async def answering(content: object, status: int = 200) -> AsyncIterator[tuple[PodClient, list[str]]]:
    """Calls to pods of which one answers everything like this; and what it was asked."""
    requests: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        requests.append(f"{request.method} {request.path} {await request.text()}".strip())
        if isinstance(content, str):
            return web.Response(text=content, status=status)
        return web.json_response(content, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.2", 0).start()
    try:
        async with PodClient(message_timeout=5, check_timeout=5, port=runner.addresses[0][1]) as pod_client:
            yield pod_client, requests
    finally:
        await runner.cleanup()


ANSWERS = [
    pytest.param(
        {"vector_space": SPACE, "dimensions": 384, "problems": []},
        200,
        SelfCheckResult(SPACE, 384, ""),
        id="sound",
    ),
    pytest.param(
        {
            "vector_space": SPACE,
            "compute": "int8@1f0c54d0a9e2",
            "min_cosine": 0.9951,
            "dimensions": 384,
            "problems": [],
        },
        200,
        SelfCheckResult(SPACE, 384, "", "int8@1f0c54d0a9e2", 0.9951),
        id="sound, with what computes it",
    ),
    pytest.param(
        {"vector_space": SPACE, "dimensions": 384, "problems": ["one", "two"]},
        503,
        SelfCheckResult(SPACE, 384, "one; two"),
        id="unsound",
    ),
    pytest.param(
        {"error": "model gave NaN"},
        500,
        SelfCheckResult(None, None, "its self-check answered 500: model gave NaN"),
        id="a failure",
    ),
    pytest.param(
        "<html>", 200, SelfCheckResult(None, None, "its self-check answered 200: <html>"), id="somebody else"
    ),
]


@pytest.mark.parametrize(("content", "status", "want"), ANSWERS)
async def test_an_answer_is_remembered_as_a_check(
    content: object, status: int, want: SelfCheckResult
) -> None:
    async with answering(content, status) as (pod_client, requests):
        passed = await pod_client.run_self_checks(KEY, (SelfCheckRequest(pod()),))
        assert passed is (not want.problem)
        assert pod_client.get_replies(KEY) == {"a/0": PodReplies(self_check=want)}
        assert requests == ["GET /selfcheck"]


async def test_a_pod_that_cannot_be_reached_has_not_proved_anything() -> None:
    async with answering({}) as (pod_client, _):
        assert not await pod_client.run_self_checks(KEY, (SelfCheckRequest(pod(NOBODY)),))
        check = pod_client.get_replies(KEY)["a/0"].self_check
    assert check is not None
    assert "management port cannot be reached" in check.problem


async def test_a_pod_whose_sidecar_resets_the_connection_leads_to_the_mesh() -> None:
    async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        # Closed with nothing to linger for, the connection is reset.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    server = await asyncio.start_server(reset, "127.0.0.2", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, PodClient(message_timeout=5, check_timeout=5, port=port) as pod_client:
        assert not await pod_client.run_self_checks(KEY, (SelfCheckRequest(pod()),))
        check = pod_client.get_replies(KEY)["a/0"].self_check
    assert check is not None
    assert "set the chart's mesh" in check.problem


async def test_those_who_must_know_are_told_first_and_without_them_nobody_is() -> None:
    required, optional = (
        PodMessage(pod(NOBODY, "b/0"), SPACE, is_required=True),
        PodMessage(pod(), SPACE, is_required=False),
    )
    async with answering({"vector_space": OTHER, "current": False}) as (pod_client, requests):
        assert await pod_client.send_messages(KEY, (required, optional)) == "TooFew"
        assert requests == []
        assert await pod_client.send_messages(KEY, (PodMessage(pod(), SPACE, is_required=True),)) == "All"
        assert requests == ['PUT /current {"vector_space": "vs1-0123456789abcdef0123"}']
        assert (
            await pod_client.send_messages(
                KEY, (PodMessage(pod(NOBODY, "b/0"), SPACE, is_required=False), optional)
            )
            == "RequiredDelivered"
        )
        assert pod_client.get_replies(KEY) == {"a/0": PodReplies(announced_space=SPACE)}


async def test_what_passed_with_runs_that_have_ended_is_forgotten() -> None:
    async with answering({"vector_space": OTHER, "current": False}) as (pod_client, _):
        for run in ("a/0", "a/1"):
            await pod_client.send_messages(KEY, (PodMessage(pod(run=run), SPACE, is_required=False),))
        pod_client.forget(KEY, but=frozenset({"a/1"}))
        assert set(pod_client.get_replies(KEY)) == {"a/1"}
        pod_client.forget(KEY)
        assert pod_client.get_replies(KEY) == {}


FETCHER = FetchingPod("docs-fetch-1-x", "127.0.0.2", "f/0")
STATE = {
    "phase": "fetching",
    "bytesDone": 41,
    "bytesTotal": 91,
    "bytesPerSecond": 8,
    "secondsRemaining": 6,
}


async def test_how_far_a_fetch_is_is_remembered_and_only_news_are_news() -> None:
    want = FetchProgress("fetching", 41, 91, 8, 6)
    async with answering(STATE) as (pod_client, requests):
        assert await pod_client.refresh_progress(KEY, (FETCHER,))
        assert pod_client.get_replies(KEY) == {"f/0": PodReplies(progress=want)}
        assert not await pod_client.refresh_progress(KEY, (replace(FETCHER, progress=want),))
        assert requests == ["GET /progress"] * 2


@pytest.mark.parametrize(
    ("content", "status"), [("<html>", 200), (STATE, 404), ({"phase": 3}, 200), ([], 200)], ids=str
)
async def test_an_answer_that_says_nothing_of_a_fetch_is_no_news(content: object, status: int) -> None:
    async with answering(content, status) as (pod_client, _):
        assert not await pod_client.refresh_progress(KEY, (FETCHER, replace(FETCHER, address=NOBODY)))
        assert pod_client.get_replies(KEY) == {}
