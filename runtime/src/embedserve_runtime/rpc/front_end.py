"""The gRPC front end in the engine's process, next to the one for HTTP: both use the same queue."""

from __future__ import annotations

import asyncio
import logging

from embedserve_runtime.frontends.front_end import FrontEnd, ServerStatus
from embedserve_runtime.rpc.server import RpcServer
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.tokenizing import TextTokenizer

log = logging.getLogger(__name__)


class RpcFrontEnd:
    """The gRPC ports and the HTTP front end, which the process starts, updates and stops as one."""

    def __init__(self, server: RpcServer, http: FrontEnd) -> None:
        self._server = server
        self._http = http
        self._stopping: asyncio.Task[None] | None = None
        self._updating = asyncio.create_task(self._server.start())
        log.info("listening for gRPC on %s", self._server.address)
        if server.space_address:
            log.info("listening for gRPC by the space's own name on %s", server.space_address)

    @property
    def observer(self) -> Observer:
        return self._http.observer

    async def wait_for_failure(self) -> None:
        await self._http.wait_for_failure()

    def set_status(self, status: ServerStatus) -> None:
        self._http.set_status(status)
        self._updating = asyncio.create_task(self._update_after(self._updating))

    async def open(self, model: LoadedModel, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        await self._http.open(model, tokenizer, dispatcher)

    def stop(self) -> None:
        self._http.stop()
        self._stopping = asyncio.create_task(self._stop_after(self._updating))

    async def wait_finished(self) -> None:
        assert self._stopping is not None, "stopped"
        await self._http.wait_finished()
        await asyncio.shield(self._stopping)

    async def close(self) -> None:
        await self._server.close()
        if self._stopping:
            await self._stopping
        await self._http.close()

    async def _update_after(self, earlier: asyncio.Task[None]) -> None:
        await earlier
        await self._server.update_health()

    async def _stop_after(self, earlier: asyncio.Task[None]) -> None:
        """Stop the server. Clients that watch the health get the last status before their watches end."""
        await earlier
        await self._server.stop()
