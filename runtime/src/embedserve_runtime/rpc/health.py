"""Serves `grpc.health.v1`: which services answer, and updates for clients that watch."""

from __future__ import annotations

import asyncio

from grpc.aio import ServicerContext
from grpc_health.v1 import health, health_pb2

from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.model.heads.description import ClassifierHead
from embedserve_runtime.rpc import native, tei
from embedserve_runtime.service.readiness import Readiness

SERVICES = {**tei.SERVICES, **native.SERVICES}
# The name of the server as a whole.
OVERALL = health.OVERALL_HEALTH
# The outputs that each service needs from the model; other services do not depend on it.
REQUIRED_OUTPUTS = {
    "tei.v1.Embed": OutputKind.DENSE | OutputKind.SPARSE | OutputKind.HIDDEN,
    "tei.v1.Predict": OutputKind.LOGITS,
}


def find_serving(readiness: Readiness) -> dict[str, bool]:
    """Return by service whether it answers: those that fit the model, while the process is ready."""
    if not readiness.is_ready:
        return dict.fromkeys((OVERALL, *SERVICES), False)
    card = readiness.service().card
    fits = {
        name: name not in REQUIRED_OUTPUTS or bool(REQUIRED_OUTPUTS[name] & card.outputs) for name in SERVICES
    }
    pairs = isinstance(card.head, ClassifierHead) and len(card.head.labels) == 1
    return {OVERALL: True, **fits, "tei.v1.Rerank": pairs or card.ranks_by_vectors}


class HealthServicer(health.aio.HealthServicer):
    """The library's servicer, which can end its watches: they would keep a server from stopping."""

    def __init__(self) -> None:
        super().__init__()
        self._ending = asyncio.Event()

    async def update(self, readiness: Readiness) -> None:
        """Update the status of all services. It has to be called when the readiness has changed."""
        status = health_pb2.HealthCheckResponse
        for name, is_serving in find_serving(readiness).items():
            await self.set(name, status.SERVING if is_serving else status.NOT_SERVING)

    def end(self) -> None:
        """End all watches. Their clients have been sent the last status before."""
        self._ending.set()

    async def Watch(  # noqa: N802  the name in the .proto
        self,
        request: health_pb2.HealthCheckRequest,
        context: ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> None:
        watching = asyncio.ensure_future(super().Watch(request, context))
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait((watching, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            ending.cancel()
            await asyncio.gather(watching, ending, return_exceptions=True)
