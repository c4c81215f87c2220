"""gRPC as a front end in the engine's process, beside the one for HTTP: both take the same queue."""

from __future__ import annotations

import asyncio
import logging

from embedserve_runtime.frontends.setup import FrontEnd, Opening, Told
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.rpc.server import CONNECTION_AGE_MS, RpcServer
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.tokenizing import TextTokenizer

log = logging.getLogger(__name__)

# From the moment at which the service's name is said to stand for another vector space, until all connections by that
# name have been asked to end and new ones lead there: their age, a tenth of it, and the time that nodes take to turn.
PARTING_SECONDS = CONNECTION_AGE_MS / 1000 * 1.1 + 3


class RpcFrontEnd:
    """http: the front end beside it, which is told and asked the same."""

    def __init__(self, readiness: Readiness, server: RpcServer, http: FrontEnd) -> None:
        self._readiness = readiness
        self._server = server
        self._http = http
        self._stopping: asyncio.Task[None] | None = None
        self._telling = asyncio.create_task(self._server.start())
        self._parting: asyncio.Task[None] | None = None
        log.info("listening for gRPC on %s", self._server.address)

    @property
    def observer(self) -> Observer:
        return self._http.observer

    async def failed(self) -> None:
        await self._http.failed()

    def tell(self, told: Told) -> None:
        self._http.tell(told)
        self._telling = asyncio.create_task(self._tell_after(self._telling))
        self._part_if_moved()

    def _part_if_moved(self) -> None:
        moved = self._readiness.elsewhere() is not None
        if moved and self._parting is None:
            self._parting = asyncio.create_task(self._part())
        elif not moved and self._parting:
            self._parting.cancel()
            self._parting = None

    async def _part(self) -> None:
        """From those who came by the service's name, once that leads elsewhere."""
        await asyncio.sleep(PARTING_SECONDS)
        self._server.part()

    async def open(self, opening: Opening, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        await self._http.open(opening, tokenizer, dispatcher)

    def stop(self) -> None:
        self._http.stop()
        self._stopping = asyncio.create_task(self._stop_after(self._telling))

    async def finished(self) -> None:
        assert self._stopping is not None, "stopped"
        await self._http.finished()
        await asyncio.shield(self._stopping)

    async def close(self) -> None:
        if self._parting:
            self._parting.cancel()
        await self._server.close()
        if self._stopping:
            await self._stopping
        await self._http.close()

    async def _tell_after(self, earlier: asyncio.Task[None]) -> None:
        await earlier
        await self._server.tell_health()

    async def _stop_after(self, earlier: asyncio.Task[None]) -> None:
        """Those that watch the health hear of the end before they are let go."""
        await earlier
        await self._server.stop()
