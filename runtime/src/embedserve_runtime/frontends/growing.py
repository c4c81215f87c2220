"""A front end whose processes are counted once the model has been measured: until then this process answers."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.frontends.own import OwnFrontEnd
from embedserve_runtime.frontends.setup import FrontEnd, Opening, Setup, Told
from embedserve_runtime.frontends.supervisor import Workers
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.server.sockets import Ports, more_ports
from embedserve_runtime.telemetry.metrics import Metrics
from embedserve_runtime.tokenizing import TextTokenizer

# What probes that are being answered may take when the processes take over the ports.
LAST_PROBES_SECONDS = 2.0


class GrowingFrontEnd:
    """The process's own front end, or `Workers` in its place after `grow`. To be counted before it is opened: nobody
    has been served by then but probes."""

    def __init__(self, setup: Setup, ports: list[Ports], context: ServerContext, metrics: Metrics) -> None:
        """ports: one, bound to grow; the sockets of other processes are put behind it, for their owner to close."""
        self._setup = setup
        self._ports = ports
        self._metrics = metrics
        self._own = OwnFrontEnd(setup, ports[0], context, metrics)
        self._front: FrontEnd = self._own
        self._told: Told | None = None
        self._grown = asyncio.Event()

    @property
    def observer(self) -> Observer:
        return self._front.observer

    async def grow(self, count: int) -> None:
        """Have `count` processes; 1 changes nothing. Raises ConfigError."""
        if count == 1:
            return
        self._own.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._own.finished(), LAST_PROBES_SECONDS)
        await self._own.close()
        self._ports += more_ports(self._ports[0], count - 1)
        server = self._setup.server.model_copy(update={"http_workers": count})
        self._front = Workers(replace(self._setup, server=server), self._ports, self._metrics)
        if self._told:
            self._front.tell(self._told)
        self._grown.set()

    async def failed(self) -> None:
        await self._grown.wait()
        await self._front.failed()

    def tell(self, told: Told) -> None:
        self._told = told
        self._front.tell(told)

    async def open(self, opening: Opening, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        await self._front.open(opening, tokenizer, dispatcher)

    def stop(self) -> None:
        self._front.stop()

    async def finished(self) -> None:
        await self._front.finished()

    async def close(self) -> None:
        await self._front.close()
