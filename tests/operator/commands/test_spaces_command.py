"""`kubectl embedserve spaces`: what it prints of a status, and where it gets that from."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from embedserve_operator.api.status import EmbeddingServiceStatus
from embedserve_operator.commands.cli import kubectl_plugin
from embedserve_operator.commands.spaces import format_table
from tests.operator.api_server import ApiServer, serving, status
from tests.operator.builders import NOW, resource

STATUS = {
    "observedGeneration": 2,
    "vectorSpace": {
        "id": "vs1-0978181612db7ef023ab",
        "dimensions": 384,
        "revision": "8d1f0c2e",
        "since": "2026-01-02T09:30:00Z",
        "url": "http://docs-09781816.search.svc",
        "previous": [
            {
                "id": "vs1-5a1e0c77b0f4d2a9e613",
                "dimensions": 768,
                "revision": "41b7c9aa",
                "sizeBytes": 438_000_000,
                "replacedAt": "2026-01-02T09:30:00Z",
                "keptUntil": "2026-01-03T09:30:00Z",
                "url": "http://docs-5a1e0c77.search.svc",
            },
            {"id": "vs1-00aa00aa00aa00aa00aa", "revision": "0f0f0f0f", "replacedAt": "2025-12-24T12:00:00Z"},
        ],
    },
    "model": {"source": "sentence-transformers/all-MiniLM-L6-v2", "sizeBytes": 91_000_000},
    "rollout": {"revision": "77777777", "state": "Preparing"},
}
WANT = """\
SPACE                      STATE          DIMENSIONS   SIZE      AGE   URL
not known yet              Preparing      -            -         -     -
vs1-0978181612db7ef023ab   Served         384          87 MiB    2h    http://docs-09781816.search.svc
vs1-5a1e0c77b0f4d2a9e613   Kept for 21h   768          418 MiB   2h    http://docs-5a1e0c77.search.svc
vs1-00aa00aa00aa00aa00aa   Gone           -            -         9d    -
"""


def test_every_space_has_a_line_with_its_size_and_age() -> None:
    assert format_table(EmbeddingServiceStatus.model_validate(STATUS), NOW) == WANT


def test_a_service_that_nobody_has_looked_at_has_no_line_yet() -> None:
    assert len(format_table(EmbeddingServiceStatus(), NOW).splitlines()) == 1


async def test_the_status_comes_from_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/namespaces/search/embeddingservices/docs"):
            return web.json_response({**resource(), "status": STATUS})
        return status(404, "not found")

    server = ApiServer()
    server.answer = answer
    async with serving(server, tmp_path, monkeypatch):
        assert await asyncio.to_thread(kubectl_plugin, ["spaces", "docs", "-n", "search"]) == 0
        captured = capsys.readouterr()
        assert await asyncio.to_thread(kubectl_plugin, ["spaces", "docs", "-n", "elsewhere"]) == 1
    assert "vs1-0978181612db7ef023ab" in captured.out
    assert "there is no EmbeddingService elsewhere/docs" in capsys.readouterr().err
