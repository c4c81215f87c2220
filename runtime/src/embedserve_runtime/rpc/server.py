"""The gRPC port: all services on one server in the process's event loop, with health and reflection."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from embedserve_runtime.api.body import LEAST_RESERVED
from embedserve_runtime.api.endpoint import Surroundings
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.model.heads.description import ClassifierHead
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.results import Output
from embedserve_runtime.rpc import native, tei
from embedserve_runtime.rpc.calls import Desk

SERVICES = {**tei.SERVICES, **native.SERVICES}
# Of the service as a whole, in grpc.health.v1.
OVERALL = health.OVERALL_HEALTH
# What each service needs of the model; the others are there whatever it is.
NEEDED = {
    "tei.v1.Embed": Output.DENSE | Output.SPARSE | Output.HIDDEN,
    "tei.v1.Predict": Output.LOGITS,
}


def serving(readiness: Readiness) -> dict[str, bool]:
    """By service, whether it answers: those that fit the model, while the process is ready."""
    if not readiness.is_ready:
        return dict.fromkeys((OVERALL, *SERVICES), False)
    card = readiness.service().card
    fits = {name: name not in NEEDED or bool(NEEDED[name] & card.outputs) for name in SERVICES}
    ranks = isinstance(card.head, ClassifierHead) and len(card.head.labels) == 1
    return {OVERALL: True, **fits, "tei.v1.Rerank": ranks}


class RpcServer:
    """As a context manager it takes calls inside, and ends those that are left at the end."""

    def __init__(self, around: Surroundings, model_name: str, host: str, port: int) -> None:
        self._readiness = around.readiness
        self._host, self._port = host, port
        most_bytes = around.intake.max_bytes
        self._server = aio.server(
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", most_bytes),
                ("grpc.max_send_message_length", -1),
            ),
            maximum_concurrent_rpcs=max(1, around.intake.max_pending_bytes // LEAST_RESERVED),
        )
        for name, methods in SERVICES.items():
            desk = Desk(around, model_name, name)
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods(desk))])
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    @property
    def address(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    async def __aenter__(self) -> Self:
        """Raises ConfigError."""
        try:
            self._port = self._server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {self.address} for gRPC: {error}") from error
        await self.tell_health()
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(None)

    async def tell_health(self) -> None:
        """To be called when the readiness has moved: clients watch it."""
        status = health_pb2.HealthCheckResponse
        for name, is_serving in serving(self._readiness).items():
            await self._health.set(name, status.SERVING if is_serving else status.NOT_SERVING)

    async def stop(self, grace: float) -> None:
        """Take no more calls; those open have so many seconds."""
        await self._server.stop(grace)
