"""The interface of whatever answers the clients, and the values that it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from embedserve_runtime.config import BatchingSettings, ServerSettings, TelemetrySettings
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.service.readiness import Phase
from embedserve_runtime.service.served_model import ServedModel
from embedserve_runtime.tokenizing import TextTokenizer


@dataclass(frozen=True, slots=True)
class FrontEndSettings:
    """What a front end knows from its start. serves_probes: no management port carries probes and metrics.

    waits_for_model: accept nobody before there is a model to answer with.
    """

    server: ServerSettings
    batching: BatchingSettings
    telemetry: TelemetrySettings
    log_level: str
    model_name: str
    serves_probes: bool
    waits_for_model: bool


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Where the server stands in its life, and what the service's name stands for, as of `Readiness`."""

    phase: Phase
    message: str
    current_space: str | None = None


class FrontEnd(Protocol):
    """What answers the clients: in this process, or in several of their own."""

    @property
    def observer(self) -> Observer:
        """What the dispatcher tells of its batches and clients."""
        ...

    async def wait_for_failure(self) -> None:
        """Raises FrontEndFailure when it can serve no more; else waits."""
        ...

    def set_status(self, status: ServerStatus) -> None: ...

    async def open(self, model: ServedModel, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        """Returns when requests can be answered."""
        ...

    def stop(self) -> None:
        """Accept no more; answer what has been accepted."""
        ...

    async def wait_finished(self) -> None:
        """After `stop`: until all is answered."""
        ...

    async def close(self) -> None:
        """End whatever is left, at once."""
        ...
