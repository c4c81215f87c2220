"""The gRPC ports: all services on servers in the process's event loop, with health and reflection.

As with HTTP, one port is for those who come by the service's own name, and one for those who ask for this vector space
by its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Self

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from embedserve_runtime.api.body import LEAST_RESERVED
from embedserve_runtime.api.endpoint import Surroundings
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.rpc.calls import Desk
from embedserve_runtime.rpc.health import SERVICES, Health
from embedserve_runtime.rpc.passing import Passing

# Calls that may be open at a time, those that watch the health included; more where there is memory for them.
LEAST_CALLS = 256
# Then a client is asked to connect anew, and so gets to another replica, or to where the service's name leads. It
# loses no call: those that are open, or on their way, go on. The library adds a tenth at random.
CONNECTION_AGE_MS = 20_000
# The process ends its front ends itself, sooner than this.
LONGEST_STOP_SECONDS = 86_400.0


class RpcPorts(NamedTuple):
    """host, and ports of which 0 takes a free one. by_name: for calls by the service's own name.

    pinned: for calls by this space's own name, never passed on. space_grpc: of `Passing`; None passes none on.
    """

    host: str
    by_name: int
    pinned: int | None = None
    space_grpc: str | None = None


class RpcServer:
    """Bound from the beginning. As a context manager it takes calls inside."""

    def __init__(self, around: Surroundings, model_name: str, ports: RpcPorts) -> None:
        """Raises ConfigError when a port cannot be had."""
        self._around = around
        self._model_name = model_name
        self._host = f"[{ports.host}]" if ":" in ports.host else ports.host
        self._health = Health()
        moves = ports.space_grpc is not None
        self._passing = (
            Passing(around, model_name, frozenset(SERVICES), ports.space_grpc) if ports.space_grpc else None
        )
        by_name = self._made([self._passing] if self._passing else [], moves=moves)
        self.address = self._bind(by_name, ports.by_name)
        self.pinned: str | None = None
        self._servers = [by_name]
        if ports.pinned is not None:
            pinned = self._made([], moves=False)
            self.pinned = self._bind(pinned, ports.pinned)
            self._servers.append(pinned)

    def _made(self, interceptors: Sequence[aio.ServerInterceptor], *, moves: bool) -> aio.Server:
        intake = self._around.intake
        server = aio.server(
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", intake.max_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
            ),
            interceptors=interceptors,
            maximum_concurrent_rpcs=max(LEAST_CALLS, intake.max_pending_bytes // LEAST_RESERVED),
        )
        for name, methods in SERVICES.items():
            desk = Desk(self._around, self._model_name, name, moves=moves)
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods(desk))])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return server

    def _bind(self, server: aio.Server, port: int) -> str:
        wanted = f"{self._host}:{port}"
        try:
            return f"{self._host}:{server.add_insecure_port(wanted)}"
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {wanted} for gRPC: {error}") from error

    async def start(self) -> None:
        await self.tell_health()
        for server in self._servers:
            await server.start()

    async def tell_health(self) -> None:
        """To be called when the readiness has moved: clients watch it."""
        await self._health.tell(self._around.readiness)

    async def stop(self) -> None:
        """Take no more calls. Returns when those open are answered, or by `close`."""
        self._health.end()
        await asyncio.gather(*(server.stop(LONGEST_STOP_SECONDS) for server in self._servers))

    async def close(self) -> None:
        """End what is left."""
        await asyncio.gather(*(server.stop(None) for server in self._servers))
        if self._passing:
            await self._passing.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
