"""Runs a front end whose number of processes is chosen once the model has been measured; until then this process
answers."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.frontends.front_end import FrontEnd, FrontEndSettings, ServerStatus
from embedserve_runtime.frontends.in_process import InProcessFrontEnd
from embedserve_runtime.frontends.supervisor import WorkerSupervisor
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.server.sockets import Ports, bind_further_ports
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.telemetry.metrics import Metrics
from embedserve_runtime.tokenizing import TextTokenizer

# What probes that are being answered may take when the processes take over the ports.
LAST_PROBES_SECONDS = 2.0


class AutoSizedFrontEnd:
    """The process's own front end, replaced by a `WorkerSupervisor` when the number of processes is set.

    The number is to be set before `open`: until then nobody has been served but probes.

    ports: one, bound with `grows`; those of further processes are appended, for their owner to close.
    """

    def __init__(
        self, settings: FrontEndSettings, ports: list[Ports], context: ServerContext, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._ports = ports
        self._metrics = metrics
        self._own = InProcessFrontEnd(settings, ports[0], context, metrics)
        self._front: FrontEnd = self._own
        self._status: ServerStatus | None = None
        self._grown = asyncio.Event()

    @property
    def observer(self) -> Observer:
        return self._front.observer

    async def grow(self, count: int) -> None:
        """Have `count` processes; 1 changes nothing. Raises ConfigError."""
        if count == 1:
            return
        self._own.stop(hands_over=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._own.wait_finished(), LAST_PROBES_SECONDS)
        await self._own.close()
        self._ports += bind_further_ports(self._ports[0], count - 1)
        server = self._settings.server.model_copy(update={"http_workers": count})
        self._front = WorkerSupervisor(replace(self._settings, server=server), self._ports, self._metrics)
        if self._status:
            self._front.set_status(self._status)
        self._grown.set()

    async def wait_for_failure(self) -> None:
        await self._grown.wait()
        await self._front.wait_for_failure()

    def set_status(self, status: ServerStatus) -> None:
        self._status = status
        self._front.set_status(status)

    async def open(self, model: LoadedModel, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        await self._front.open(model, tokenizer, dispatcher)

    def stop(self) -> None:
        self._front.stop()

    async def wait_finished(self) -> None:
        await self._front.wait_finished()

    async def close(self) -> None:
        await self._front.close()
