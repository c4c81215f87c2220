"""The gRPC port: all services on one server in the process's event loop, with health and reflection."""

from __future__ import annotations

from typing import Self

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from embedserve_runtime.api.body import LEAST_RESERVED
from embedserve_runtime.api.endpoint import Surroundings
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.rpc.calls import Desk, Gate
from embedserve_runtime.rpc.health import SERVICES, Health

# Calls that may be open at a time, those that watch the health included; more where there is memory for them.
LEAST_CALLS = 256
# Then a client is asked to connect anew, and so gets to another replica, or to where the service's name leads. It
# loses no call: those that are open, or on their way, go on. The library adds a tenth at random.
CONNECTION_AGE_MS = 20_000
# The process ends its front ends itself, sooner than this.
LONGEST_STOP_SECONDS = 86_400.0


class RpcServer:
    """Bound from the beginning. As a context manager it takes calls inside."""

    def __init__(self, around: Surroundings, model_name: str, host: str, port: int) -> None:
        """port: 0 takes a free one. Raises ConfigError when the port cannot be had."""
        self._readiness = around.readiness
        self._gate = Gate(around.readiness)
        self._host = f"[{host}]" if ":" in host else host
        most_bytes = around.intake.max_bytes
        self._server = aio.server(
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", most_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
            ),
            maximum_concurrent_rpcs=max(LEAST_CALLS, around.intake.max_pending_bytes // LEAST_RESERVED),
        )
        for name, methods in SERVICES.items():
            desk = Desk(around, model_name, name, self._gate)
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods(desk))])
        self._health = Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.address = self._bind(port)

    def _bind(self, port: int) -> str:
        wanted = f"{self._host}:{port}"
        try:
            return f"{self._host}:{self._server.add_insecure_port(wanted)}"
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {wanted} for gRPC: {error}") from error

    async def start(self) -> None:
        await self.tell_health()
        await self._server.start()

    def part(self) -> None:
        """As long as the service's name stands for another vector space, answer only calls that name this one."""
        self._gate.is_closed = True

    async def tell_health(self) -> None:
        """To be called when the readiness has moved: clients watch it."""
        await self._health.tell(self._readiness)

    async def stop(self) -> None:
        """Take no more calls. Returns when those open are answered, or by `close`."""
        self._health.end()
        await self._server.stop(LONGEST_STOP_SECONDS)

    async def close(self) -> None:
        """End what is left."""
        await self._server.stop(None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
