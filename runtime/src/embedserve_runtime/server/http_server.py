"""uvicorn's server, started and stopped by the process that it lives in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGIApplication

from embedserve_runtime.server import limits
from embedserve_runtime.server.protocol import (
    BoundedHttpProtocol,
    ConnectionObserver,
    IdleConnections,
    ServerConfig,
)

_TICKS_PER_SECOND = 10
"""uvicorn calls `on_tick` this often."""


class HttpServer(uvicorn.Server):
    """Serves an application on a listening socket, which stays its owner's. Made on the loop that it runs on."""

    def __init__(self, app: ASGIApp, sock: socket.socket, observer: ConnectionObserver) -> None:
        config = ServerConfig(
            # Starlette's type of an application and uvicorn's differ in their spelling alone.
            cast(ASGIApplication, app),
            http=BoundedHttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(limits.IDLE_SECONDS),
        )
        config.observer = observer
        config.idle_connections = IdleConnections()
        super().__init__(config)
        self._hands_over = False
        # uvicorn closes what it is given.
        self._serving = asyncio.get_running_loop().create_task(self.serve([sock.dup()]))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process, which drains before it stops its servers."""
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % max(1, int(limits.SWEEP_SECONDS * _TICKS_PER_SECOND)) == 0:
            self._check_deadlines()
        return await super().on_tick(counter)

    def _check_deadlines(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in [*self.server_state.connections]:
            if isinstance(connection, BoundedHttpProtocol):
                connection.check_deadlines(now)

    def stop(self, *, hands_over: bool = False) -> None:
        """Accept no more connections, and close each after the request in work.

        hands_over: whether another server takes over the port, so that new clients may wait for it. Else they are
        refused at once: nobody will accept them before the process ends and resets them.
        """
        self._hands_over = hands_over
        self.should_exit = True

    async def wait_finished(self) -> None:
        """Wait, after `stop`, until the last connection is closed."""
        await asyncio.shield(self._serving)

    async def abort(self) -> None:
        """Close every connection at once."""
        self.should_exit = self.force_exit = True
        for connection in [*self.server_state.connections]:
            if connection.transport is not None:
                connection.transport.abort()
        await self._serving

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does, and end the connections that do not end by themselves."""
        if not self._hands_over:
            for sock in sockets or ():
                # Ends the listening of the owner's socket too, and of those in other processes.
                sock.shutdown(socket.SHUT_RD)
        sweeping = asyncio.create_task(self._sweep())
        try:
            await super().shutdown(sockets)
        finally:
            sweeping.cancel()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(limits.SWEEP_SECONDS)
            self._check_deadlines()
