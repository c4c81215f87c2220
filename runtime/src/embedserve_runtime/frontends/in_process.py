"""The front end that lives in the engine's process: one process for all, which is the default."""

from __future__ import annotations

import asyncio
import time

from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.frontends.front_end import FrontEndSettings, ServerStatus
from embedserve_runtime.frontends.servers import HttpServers
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.server.sockets import Ports
from embedserve_runtime.service import InferenceService
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.tokenizing import TextTokenizer


class InProcessFrontEnd:
    """Shares the readiness of the process, in `context`, so that nothing has to be told."""

    def __init__(
        self, settings: FrontEndSettings, ports: Ports, context: ServerContext, observer: Observer
    ) -> None:
        self.observer = observer
        self._context = context
        self._batching = settings.batching
        self._servers = HttpServers(settings.server, ports, context)
        self._service: InferenceService | None = None

    async def wait_for_failure(self) -> None:
        await asyncio.Event().wait()

    def set_status(self, status: ServerStatus) -> None:
        pass

    async def open(self, model: LoadedModel, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        self._service = InferenceService(model, tokenizer, dispatcher, self._batching, time.perf_counter)
        self._context.readiness.open(self._service)

    def stop(self, *, hands_over: bool = False) -> None:
        self._servers.stop(hands_over=hands_over)

    async def wait_finished(self) -> None:
        await self._servers.wait_finished()

    async def close(self) -> None:
        await self._servers.abort()
        if self._service:
            self._service.close()
