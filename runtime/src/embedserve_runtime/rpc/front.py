"""gRPC as a front end in the engine's process, beside the one for HTTP: both take the same queue."""

from __future__ import annotations

import asyncio
import logging
import time

from embedserve_runtime.errors import NotReady
from embedserve_runtime.frontends.setup import FrontEnd, Opening, Setup, Told
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.rpc.server import RpcServer
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.service import EmbeddingService
from embedserve_runtime.tokenizing import TextTokenizer

log = logging.getLogger(__name__)


class RpcFrontEnd:
    """http: the front end beside it, which is told and asked the same."""

    def __init__(self, setup: Setup, readiness: Readiness, server: RpcServer, http: FrontEnd) -> None:
        self._setup = setup
        self._readiness = readiness
        self._server = server
        self._http = http
        self._service: EmbeddingService | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._telling = asyncio.create_task(self._server.start())
        log.info("listening for gRPC on %s", self._server.address)

    @property
    def observer(self) -> Observer:
        return self._http.observer

    async def failed(self) -> None:
        await self._http.failed()

    def tell(self, told: Told) -> None:
        self._http.tell(told)
        self._telling = asyncio.create_task(self._tell_after(self._telling))

    async def open(self, opening: Opening, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        await self._http.open(opening, tokenizer, dispatcher)
        try:
            self._readiness.service()
        except NotReady:  # HTTP is answered by processes of its own, which have services of their own
            self._service = EmbeddingService(
                opening.card,
                tokenizer,
                dispatcher,
                self._setup.batching,
                time.perf_counter,
                engines=opening.engines,
            )
            self._readiness.open(self._service)

    def stop(self) -> None:
        self._http.stop()
        self._stopping = asyncio.create_task(self._stop_after(self._telling))

    async def finished(self) -> None:
        assert self._stopping is not None, "stopped"
        await self._http.finished()
        await asyncio.shield(self._stopping)

    async def close(self) -> None:
        await self._server.close()
        if self._stopping:
            await self._stopping
        await self._http.close()
        if self._service:
            self._service.close()

    async def _tell_after(self, earlier: asyncio.Task[None]) -> None:
        await earlier
        await self._server.tell_health()

    async def _stop_after(self, earlier: asyncio.Task[None]) -> None:
        """Those that watch the health hear of the end before they are let go."""
        await earlier
        await self._server.stop()
