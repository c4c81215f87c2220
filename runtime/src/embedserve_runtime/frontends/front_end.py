"""The interface of whatever answers the clients, and the values that it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from embedserve_runtime.config import BatchingSettings, LogFormat, ServerSettings, TelemetrySettings
from embedserve_runtime.scheduling.dispatcher import Dispatcher, Observer
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.service.readiness import Phase
from embedserve_runtime.tokenizing import TextTokenizer


@dataclass(frozen=True, slots=True)
class FrontEndSettings:
    """The settings that a front end gets at its start.

    serves_probes: no management port carries probes and metrics.

    waits_for_model: accept nobody before there is a model to answer with.
    """

    server: ServerSettings
    batching: BatchingSettings
    telemetry: TelemetrySettings
    log_level: str
    log_format: LogFormat
    model_name: str
    serves_probes: bool
    waits_for_model: bool


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The phase of the server, and the vector space that the service has switched to; the same as in `Readiness`.

    max_batch_tokens: the token budget of a batch, once there is one; it may change while the server is ready.
    """

    phase: Phase
    message: str
    current_space: str | None = None
    max_batch_tokens: int | None = None


class FrontEnd(Protocol):
    """Answers the clients, in this process or in several others."""

    @property
    def observer(self) -> Observer:
        """Return the observer of the dispatcher's batches and clients."""
        ...

    async def wait_for_failure(self) -> None:
        """Wait until it cannot serve any more, and raise FrontEndFailure."""
        ...

    def set_status(self, status: ServerStatus) -> None: ...

    async def open(self, model: LoadedModel, tokenizer: TextTokenizer, dispatcher: Dispatcher) -> None:
        """Start, and return when requests can be answered."""
        ...

    def stop(self) -> None:
        """Accept no more; answer what has been accepted."""
        ...

    async def wait_finished(self) -> None:
        """Wait, after `stop`, until all requests are answered."""
        ...

    async def close(self) -> None:
        """End whatever is left, at once."""
        ...
