"""`/healthz` of the operator."""

from __future__ import annotations

import httpx

from embedserve_operator.process.health import HeartbeatMonitor, serve_health
from tests.support.ports import find_free_port


def test_a_loop_is_silent_when_its_last_sign_is_too_long_ago() -> None:
    now = 0.0
    heartbeats = HeartbeatMonitor(lambda: now)
    heartbeats.expect("worker", 10.0)
    heartbeats.expect("lease", 100.0)
    now = 10.5
    assert heartbeats.find_silent() == ["worker"]
    heartbeats.record("worker")
    assert heartbeats.find_silent() == []


async def test_the_probe_fails_when_a_loop_is_silent() -> None:
    now = 0.0
    heartbeats = HeartbeatMonitor(lambda: now)
    heartbeats.expect("worker", 10.0)
    port = find_free_port()
    runner = await serve_health(heartbeats, port)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.get("/healthz")).status_code == 200
            now = 11.0
            answer = await client.get("/healthz")
            assert (answer.status_code, answer.json()["loops"]) == (503, ["worker"])
    finally:
        await runner.cleanup()
