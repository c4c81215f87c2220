"""The front end that lives in the engine's process: one process for all, which is the default."""

from __future__ import annotations

import asyncio
import time

from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.frontends.servers import Servers
from embedserve_runtime.frontends.setup import Opening, Setup, Told
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.server.sockets import Ports
from embedserve_runtime.service import EmbeddingService
from embedserve_runtime.tokenizing import TextTokenizer


class OwnFrontEnd:
    """Shares the readiness of the process, in `context`, so that nothing has to be told."""

    def __init__(self, setup: Setup, ports: Ports, context: ServerContext, observer: Observer) -> None:
        self.observer = observer
        self._context = context
        self._batching = setup.batching
        self._servers = Servers(setup.server, ports, context)
        self._service: EmbeddingService | None = None

    async def failed(self) -> None:
        await asyncio.Event().wait()

    def tell(self, told: Told) -> None:
        pass

    async def open(self, opening: Opening, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        self._service = EmbeddingService(
            opening.card, tokenizer, dispatcher, self._batching, time.perf_counter, engines=opening.engines
        )
        self._context.readiness.open(self._service)

    def stop(self) -> None:
        self._servers.stop()

    async def finished(self) -> None:
        await self._servers.finished()

    async def close(self) -> None:
        await self._servers.abort()
        if self._service:
            self._service.close()
