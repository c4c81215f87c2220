"""`/healthz` and `/readyz`. The first fails when a loop that should turn has stopped turning, or when nothing answers
at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web


@dataclass(slots=True)
class _Beat:
    last: float
    limit: float


class Pulse:
    """The last sign of life of every loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._beats: dict[str, _Beat] = {}

    def expect(self, loop: str, within: float) -> None:
        """From now on, that loop must give a sign every `within` seconds."""
        self._beats[loop] = _Beat(self._clock(), within)

    def beat(self, loop: str) -> None:
        """A sign of life."""
        self._beats[loop].last = self._clock()

    def silent(self) -> list[str]:
        """Loops that have been silent for too long."""
        now = self._clock()
        return sorted(loop for loop, beat in self._beats.items() if now - beat.last > beat.limit)


async def serve_health(pulse: Pulse, port: int, ready: Callable[[], bool] = lambda: True) -> web.AppRunner:
    """Answer on every address of the pod until the returned runner is cleaned up.

    `/healthz` is about the loops; `/readyz` about whether requests may be sent here.
    """

    async def healthz(_request: web.Request) -> web.Response:
        silent = pulse.silent()
        if silent:
            return web.json_response({"status": "stopped", "loops": silent}, status=503)
        return web.json_response({"status": "ok"})

    async def readyz(_request: web.Request) -> web.Response:
        return web.json_response({"ready": ready()}, status=200 if ready() else 503)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
