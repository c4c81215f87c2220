"""The front end that lives in the engine's process: one process for all, which is the default."""

from __future__ import annotations

import asyncio
import socket
import time

from embedserve_runtime.api.app import serving_app
from embedserve_runtime.api.endpoint import Surroundings
from embedserve_runtime.frontends.setup import Opening, Setup, Told, Watches
from embedserve_runtime.httpd.server import Server
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.service import EmbeddingService
from embedserve_runtime.tokenizing import TextTokenizer


class OwnFrontEnd:
    """Shares the readiness of the process, in `around`, so that nothing has to be told."""

    def __init__(self, setup: Setup, sock: socket.socket, around: Surroundings, observer: Observer) -> None:
        self.observer = observer
        self._around = around
        self._batching = setup.batching
        app = serving_app(around, setup.model_name, with_probes=setup.with_probes)
        self._server = Server(app, sock, Watches(around.metrics))
        self._service: EmbeddingService | None = None

    async def failed(self) -> None:
        await asyncio.Event().wait()

    def tell(self, told: Told) -> None:
        pass

    async def open(self, opening: Opening, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        self._service = EmbeddingService(
            opening.card, tokenizer, dispatcher, self._batching, time.perf_counter, engines=opening.engines
        )
        self._around.readiness.open(self._service)

    def stop(self) -> None:
        self._server.stop()

    async def finished(self) -> None:
        await self._server.finished()

    async def close(self) -> None:
        self._server.abort()
        await self._server.finished()
        self._server.close()
        if self._service:
            self._service.close()
