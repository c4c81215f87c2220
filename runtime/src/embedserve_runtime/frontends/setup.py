"""What a front end is made of, whichever process it lives in."""

from __future__ import annotations

import copyreg
import gc
import io
import pickle
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from embedserve_runtime.api.api_keys import ApiKeys
from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.api.errors import CAUSES, STATUSES
from embedserve_runtime.api.memory import MIN_REQUEST_BYTES, RequestMemory
from embedserve_runtime.api.routes import (
    EMBEDDING_ROUTES,
    OTHER,
    ROUTES,
    RPC_EMBEDDING_SERVICES,
    RPC_SERVICES,
)
from embedserve_runtime.config import BatchingSettings, ServerSettings, TelemetrySettings
from embedserve_runtime.engines.base import EngineFacts
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.service.readiness import Phase, Readiness
from embedserve_runtime.telemetry.requests import RequestFacts, RequestMetrics, RequestSeries
from embedserve_runtime.tokenizing import TextTokenizer

if TYPE_CHECKING:
    from embedserve_runtime.telemetry.tracing import RequestTracer

# A thread that computes holds the interpreter this long at most when another one wants it. The default of 5
# ms would let the engine wait for the event loop about as long as a small batch takes.
SWITCH_SECONDS = 0.0005
# Objects of a request are freed when it ends, without the collector: it looks for cycles, of which there are few, and
# each look at all objects stops the process. The first number counts objects more than were freed.
COLLECTIONS = (20_000, 20, 50)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a front end knows from its start. with_probes: no management port carries probes and metrics.

    waits: accept nobody before there is a model to answer with.
    """

    server: ServerSettings
    batching: BatchingSettings
    telemetry: TelemetrySettings
    log_level: str
    model_name: str
    with_probes: bool
    waits: bool


@dataclass(frozen=True, slots=True)
class Told:
    """Where the server stands in its life, and what the service's name stands for, as of `Readiness`."""

    phase: Phase
    message: str
    current_space: str | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """What a front end needs to answer requests, once the model is there."""

    card: ModelCard
    limits: Limits
    engines: Sequence[EngineFacts]


class FrontEnd(Protocol):
    """What answers the clients: in this process, or in several of their own."""

    @property
    def observer(self) -> Observer:
        """Of the dispatcher."""
        ...

    async def failed(self) -> None:
        """Raises FrontEndFailure when it can serve no more; else waits."""
        ...

    def tell(self, told: Told) -> None: ...

    async def open(self, opening: Opening, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        """Returns when requests can be answered."""
        ...

    def stop(self) -> None:
        """Accept no more; answer what has been accepted."""
        ...

    async def finished(self) -> None:
        """After `stop`: until all is answered."""
        ...

    async def close(self) -> None:
        """End whatever is left, at once."""
        ...


class ConnectionMetrics:
    """Counts what the HTTP server says of its connections."""

    def __init__(self, metrics: RequestMetrics) -> None:
        self._metrics = metrics
        self.connection_opened = metrics.connection_opened
        self.connection_closed = metrics.connection_closed

    def refused(self, status: int) -> None:
        self._metrics.request_done(OTHER, status, 0.0, RequestFacts())


def request_series() -> RequestSeries:
    return RequestSeries(
        (*ROUTES, *RPC_SERVICES), STATUSES, (*EMBEDDING_ROUTES, *RPC_EMBEDDING_SERVICES), CAUSES
    )


def server_context(
    setup: Setup,
    readiness: Readiness,
    metrics: RequestMetrics,
    metrics_page: Callable[[], Awaitable[bytes]],
) -> ServerContext:
    """What the requests of this process share."""
    server = setup.server
    # Each process keeps within its share, which has room for one body of the largest size.
    share = max(server.max_pending_bytes // server.first_workers, server.max_body_bytes + MIN_REQUEST_BYTES)
    return ServerContext(
        readiness,
        setup.model_name,
        metrics,
        metrics_page,
        RequestMemory(server.max_body_bytes, share),
        ApiKeys(server.api_keys),
        tracer=_tracer(setup),
        # No more could wait in the queue, as texts or as token ids.
        max_json_values=max(setup.batching.max_queue_tokens, setup.batching.max_queue_inputs),
        http_workers=server.first_workers,
    )


def _tracer(setup: Setup) -> RequestTracer | None:
    if not setup.telemetry.has_traces:
        return None
    # Imported here, since the library takes 20 MB that a server without traces need not have.
    from embedserve_runtime.telemetry.tracing import RequestTracer

    return RequestTracer(setup.telemetry.otlp_endpoint, setup.model_name)


def prepare_process() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*COLLECTIONS)


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


class _Pickler(pickle.Pickler):
    """Writes read-only mappings too; their class has no name that pickle could find."""

    dispatch_table = copyreg.dispatch_table | {MappingProxyType: lambda proxy: (_read_only, (dict(proxy),))}


def pickled(value: Setup | Told | Opening) -> bytes:
    """Only ever read by a front end from the process that has started it, never the other way round."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def unpickled(content: bytes) -> Any:
    return pickle.loads(content)
