"""The HTTP servers of one front end: on the serving port, and on that of the vector space's own name."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from embedserve_runtime.api.app import create_app
from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.config import ServerSettings
from embedserve_runtime.frontends.context import ConnectionMetrics
from embedserve_runtime.server.http_server import HttpServer
from embedserve_runtime.server.sockets import Ports


class HttpServers:
    """The HTTP servers of one process, started and stopped together.

    Requests by the vector space's own name are answered here, whatever the service's name stands for."""

    def __init__(self, settings: ServerSettings, ports: Ports, context: ServerContext) -> None:
        app = create_app(context, settings)
        observer = ConnectionMetrics(context.metrics)
        self._servers = [HttpServer(app, ports.service, observer)]
        if ports.space:
            self._servers.append(HttpServer(_never_forward(app), ports.space, observer))

    def stop(self, *, hands_over: bool = False) -> None:
        """Stop the servers. hands_over: whether others take over the ports."""
        for server in self._servers:
            server.stop(hands_over=hands_over)

    async def wait_finished(self) -> None:
        await asyncio.gather(*(server.wait_finished() for server in self._servers))

    async def abort(self) -> None:
        await asyncio.gather(*(server.abort() for server in self._servers))


def _never_forward(app: ASGIApp) -> ASGIApp:
    """Return the application for requests by the vector space's own name, which are never passed on."""

    async def answer_here(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["by_space_name"] = True
        await app(scope, receive, send)

    return answer_here
