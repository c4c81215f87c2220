"""Answers are compressed for the clients that take them so, and for no others."""

from __future__ import annotations

import pytest

from embedserve_runtime.config import ServerSettings
from tests.support.in_process_server import serve_in_process

ACCEPTED = {
    "gzip": True,
    "GZIP": True,
    "br, gzip;q=0.5": True,
    "gzip; q=1.0, identity": True,
    "": False,
    "br": False,
    "identity": False,
    "x-gzip-like": False,
    "gzip;q=0": False,
    "gzip; q=0.000, br": False,
    "gzip;q=abc": False,
    "gzip;q=nan": False,
}


@pytest.mark.parametrize(("accept", "want"), ACCEPTED.items(), ids=[*ACCEPTED])
async def test_an_answer_is_compressed_where_the_client_accepts_gzip(accept: str, want: bool) -> None:
    async with serve_in_process(settings=ServerSettings(compress_from_bytes=1_000)) as server:
        answer = await server.client.post(
            "/embed", json={"inputs": ["hello"] * 64}, headers={"accept-encoding": accept}
        )
    assert (answer.status_code, len(answer.json())) == (200, 64)
    assert (answer.headers.get("content-encoding") == "gzip") == want


async def test_by_default_nothing_is_compressed() -> None:
    async with serve_in_process() as server:
        answer = await server.client.post(
            "/embed", json={"inputs": ["hello"] * 64}, headers={"accept-encoding": "gzip"}
        )
    assert "content-encoding" not in answer.headers
