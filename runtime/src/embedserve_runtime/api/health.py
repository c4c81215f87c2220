"""Probes and metrics. None of them touches the engine: a busy engine is not a dead process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.schemas import ProbeBody
from embedserve_runtime.errors import NotReady
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.telemetry.metrics import CONTENT_TYPE


class HealthRoutes:
    def __init__(self, readiness: Readiness, page: Callable[[], Awaitable[bytes]]) -> None:
        """page: the text of `/metrics`."""
        self._readiness = readiness
        self._page = page

    async def livez(self, _: Exchange) -> Answer:
        """The event loop turns."""
        return _probe(200, "Alive", "the process answers")

    async def readyz(self, _: Exchange) -> Answer:
        readiness = self._readiness
        return _probe(200 if readiness.is_ready else 503, readiness.phase, readiness.message)

    async def health(self, _: Exchange) -> Answer:
        """TEI's probe: an empty body, or an error of type Unhealthy."""
        if not self._readiness.is_ready:
            raise NotReady(f"not ready: {self._readiness.message}")
        return Answer(b"")

    async def metrics(self, _: Exchange) -> Answer:
        return Answer(await self._page(), content_type=CONTENT_TYPE)


def _probe(status: int, phase: str, message: str) -> Answer:
    return Answer(msgspec.json.encode(ProbeBody(status=str(phase), message=message)), status=status)
