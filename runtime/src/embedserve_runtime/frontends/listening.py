"""The HTTP servers of one front end: on the serving port, and on the port of the vector space's own name."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple

from embedserve_runtime.api.app import serving_app
from embedserve_runtime.api.endpoint import Surroundings
from embedserve_runtime.api.forwarding import Forwarding
from embedserve_runtime.frontends.setup import Setup, Watches
from embedserve_runtime.httpd.server import Server


class Ports(NamedTuple):
    """Listening sockets of one front end. pinned: of the vector space's own name, where it has one."""

    serving: socket.socket
    pinned: socket.socket | None

    def handles(self) -> tuple[int, ...]:
        return tuple(sock.fileno() for sock in self if sock)


class Servers:
    """As one server. What comes in on the pinned port is answered here, whatever the service's name stands for."""

    def __init__(self, setup: Setup, ports: Ports, around: Surroundings) -> None:
        app = serving_app(around, setup.model_name, with_probes=setup.with_probes)
        url, watches = setup.server.space_url, Watches(around.metrics)
        self._servers = [Server(app if url is None else Forwarding(app, around, url), ports.serving, watches)]
        if ports.pinned:
            self._servers.append(Server(app, ports.pinned, watches))

    def stop(self) -> None:
        for server in self._servers:
            server.stop()

    async def finished(self) -> None:
        await asyncio.gather(*(server.finished() for server in self._servers))

    def abort(self) -> None:
        for server in self._servers:
            server.abort()

    def close(self) -> None:
        for server in self._servers:
            server.close()
