"""Why the pods of a Job cannot be created is read from its events, since the Job does not say it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from embedserve_operator.cache.job_events import JobEvents
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.state.jobs import JobState
from tests.operator.api_server import ApiServer, serving, status

KEY = ObjectKey("search", "docs")
JOB = JobState("docs-fetch-1", "uid-1", "fetch", "owner", "t", "c", "Running", None)


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    async with serving(ApiServer(), tmp_path, monkeypatch) as api_server:
        yield api_server


def event(message: str, minute: int) -> dict[str, Any]:
    return {"kind": "Event", "message": message, "lastTimestamp": f"2026-01-02T12:{minute:02}:00Z"}


async def test_the_latest_event_counts_and_only_news_are_news(server: ApiServer) -> None:
    items = [event("exceeded quota: new", 5), event("exceeded quota: old", 1)]

    async def say(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": items})

    server.answer = say
    async with KubeClient(request_timeout=5) as kube:
        events = JobEvents(kube)
        assert await events.refresh(KEY, (JOB,))
        assert events.get_creation_problems(KEY) == {"uid-1": "exceeded quota: new"}
        assert not await events.refresh(KEY, (JOB,))
        items.clear()
        assert await events.refresh(KEY, (JOB,))
        assert events.get_creation_problems(KEY) == {}
    assert server.requests[0] == (
        "GET /api/v1/namespaces/search/events"
        "?fieldSelector=involvedObject.uid%3Duid-1,reason%3DFailedCreate&limit=100"
    )


async def test_without_the_right_to_read_events_all_else_goes_on(server: ApiServer) -> None:
    async def refuse(_request: web.Request) -> web.StreamResponse:
        return status(403, "no right")

    server.answer = refuse
    async with KubeClient(request_timeout=5) as kube:
        events = JobEvents(kube)
        assert not await events.refresh(KEY, (JOB,))
        assert events.get_creation_problems(KEY) == {}
