"""Serves all gRPC services on their ports in the process's event loop, with health and reflection.

As with HTTP, one port is for calls by the service's name, and one for calls by the name of this vector space.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple, Self

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc

from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.api.memory import MIN_REQUEST_BYTES
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.rpc.forwarding import CallForwarder
from embedserve_runtime.rpc.handlers import MethodHandlers, RpcContext, UnknownMethods
from embedserve_runtime.rpc.health import SERVICES, HealthServicer
from embedserve_runtime.rpc.memory import MessageMemory
from embedserve_runtime.rpc.messages import max_receive_bytes
from embedserve_runtime.rpc.reflection import add_reflection

# The number of calls that may be open, health watches included; more where there is memory for them.
MIN_CONCURRENT_CALLS = 256
# After this time a client is asked to reconnect, and so reaches another replica, or what the service's name stands for
# now. It loses no call: open calls go on. The library adds a tenth at random.
MAX_CONNECTION_AGE_MS = 20_000
# The minimum time between two keep-alive pings of a client, even without an open call. Many clients send one every 10
# s, and the network may bring two of them closer together. By default the library accepts one in 5 minutes, and closes
# the connection of a client that sends more.
MIN_PING_INTERVAL_MS = 5_000
# In practice the process closes its front ends earlier than this.
MAX_STOP_SECONDS = 86_400.0


class RpcPorts(NamedTuple):
    """The host and the ports on which the server listens; port 0 takes a free one.

    service: for calls by the service's name. space: for calls by this space's name, which are never forwarded.
    space_grpc: the address of other spaces, as in `CallForwarder`; None forwards no call.
    """

    host: str
    service: int
    space: int | None = None
    space_grpc: str | None = None


class RpcServer:
    """The gRPC ports, which are bound from the beginning. As a context manager it serves calls inside."""

    def __init__(self, server: ServerContext, ports: RpcPorts) -> None:
        """Bind the ports. Raises ConfigError when a port is not available."""
        self._server = server
        self._ports = ports
        self._context = RpcContext(server, MessageMemory(server.memory))
        self._host = f"[{ports.host}]" if ":" in ports.host else ports.host
        self._health = HealthServicer()
        self._forwarder = (
            CallForwarder(self._context, SERVICES, ports.space_grpc) if ports.space_grpc else None
        )
        service = self._create([self._forwarder] if self._forwarder else [])
        self.address = self._bind(service, ports.service)
        self.space_address: str | None = None
        self._servers = [service]
        if ports.space is not None:
            space_server = self._create([])
            self.space_address = self._bind(space_server, ports.space)
            self._servers.append(space_server)

    def _create(self, forwarders: Sequence[CallForwarder]) -> aio.Server:
        """Create a server that is not bound yet. forwarders: empty for a name that always stands for this space."""
        memory = self._server.memory
        server = aio.server(
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_receive_bytes(memory.max_body_bytes)),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_connection_age_ms", MAX_CONNECTION_AGE_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
            ),
            interceptors=forwarders,
            maximum_concurrent_rpcs=max(MIN_CONCURRENT_CALLS, memory.max_pending_bytes // MIN_REQUEST_BYTES),
        )
        for name, methods in SERVICES.items():
            handlers = MethodHandlers(self._context, name, name_may_move=bool(forwarders))
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods(handlers))])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        add_reflection(server, (*SERVICES, health.SERVICE_NAME))
        server.add_generic_rpc_handlers([UnknownMethods(self._server)])
        return server

    def _bind(self, server: aio.Server, port: int) -> str:
        address = f"{self._host}:{port}"
        try:
            return f"{self._host}:{server.add_insecure_port(address)}"
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address} for gRPC: {self._find_reason(port)}") from error

    def _find_reason(self, port: int) -> str:
        """Find out why a port could not be bound, which the library tells nobody but its own log."""
        try:
            with socket.create_server(
                (self._ports.host, port),
                family=socket.AF_INET6 if ":" in self._ports.host else socket.AF_INET,
            ):
                return "it was in use"
        except OSError as error:
            # Python appends the address; names that are not found have a number of their own below 0.
            return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)

    async def start(self) -> None:
        await self.update_health()
        for server in self._servers:
            await server.start()

    async def update_health(self) -> None:
        """Update clients that watch the health. It has to be called when the readiness has changed."""
        await self._health.update(self._server.readiness)

    async def stop(self) -> None:
        """Accept no more calls. It returns when the open calls are answered, or when `close` is called."""
        self._health.end()
        await asyncio.gather(*(server.stop(MAX_STOP_SECONDS) for server in self._servers))

    async def close(self) -> None:
        """End the calls that are still open."""
        await asyncio.gather(*(server.stop(None) for server in self._servers))
        if self._forwarder:
            await self._forwarder.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
