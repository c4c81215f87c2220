"""Requests are in the log where the setting says so, and where they fail in the server."""

from __future__ import annotations

import logging

import pytest

from embedserve_runtime.config import ServerSettings
from tests.support.in_process_server import serve_in_process


def list_requests(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    return [
        (record.levelname, record.status)  # type: ignore[attr-defined]
        for record in caplog.records
        if record.getMessage() == "request"
    ]


@pytest.mark.parametrize("access_log", [False, True])
async def test_a_request_is_in_the_log_if_that_is_set(
    access_log: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with serve_in_process(settings=ServerSettings(access_log=access_log)) as server:
            served = await server.client.post("/embed", json={"inputs": "hello"})
            refused = await server.client.post("/embed", content=b"{")
            await server.client.get("/health")
    lines = [("INFO", served.status_code), ("INFO", refused.status_code)]
    assert list_requests(caplog) == (lines if access_log else [])


async def test_a_request_that_fails_in_the_server_is_logged_with_its_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve_in_process() as server:
        server.service._encoders = None  # type: ignore[assignment]  # a bug, as far as the route can tell
        await server.client.post("/embed", json={"inputs": "hello"}, headers={"X-Request-Id": "mine"})
    assert list_requests(caplog) == [("WARNING", 500)]
    assert {getattr(record, "request_id", None) for record in caplog.records} == {"mine"}
