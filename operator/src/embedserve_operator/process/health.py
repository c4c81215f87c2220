"""Serves `/healthz`, `/readyz` and `/metrics`.

`/healthz` fails when a loop has stopped, or when nothing answers at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST


@dataclass(slots=True)
class _Heartbeat:
    last: float
    limit: float


class HeartbeatMonitor:
    """Remembers the last heartbeat of every loop."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._beats: dict[str, _Heartbeat] = {}

    def expect(self, loop: str, within: float) -> None:
        """Expect a heartbeat of that loop every `within` seconds from now on."""
        self._beats[loop] = _Heartbeat(self._monotonic(), within)

    def record(self, loop: str) -> None:
        """Record a heartbeat of a loop."""
        self._beats[loop].last = self._monotonic()

    def find_silent(self) -> list[str]:
        """Return the loops that have been silent for too long."""
        now = self._monotonic()
        return sorted(loop for loop, beat in self._beats.items() if now - beat.last > beat.limit)


async def serve_health(
    heartbeats: HeartbeatMonitor,
    port: int,
    ready: Callable[[], bool] = lambda: True,
    format_metrics: Callable[[], bytes] = lambda: b"",
) -> web.AppRunner:
    """Answer at every address of the pod until the returned runner is cleaned up.

    `/healthz` says whether the loops are alive, `/readyz` whether requests may be sent to this process, `/metrics`
    what `format_metrics` returns.
    """

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=format_metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_request: web.Request) -> web.Response:
        silent = heartbeats.find_silent()
        if silent:
            return web.json_response({"status": "stopped", "loops": silent}, status=503)
        return web.json_response({"status": "ok"})

    async def readyz(_request: web.Request) -> web.Response:
        return web.json_response({"ready": ready()}, status=200 if ready() else 503)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
