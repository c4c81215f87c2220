"""The phase of the process between its start and its end, with the service while there is one.

`serve` moves it, probes read it, routes ask it for the service. It never touches the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from embedserve_runtime.errors import NotReady
from embedserve_runtime.service import EmbeddingService


class Phase(StrEnum):
    LOADING = "Loading"
    WARMING_UP = "WarmingUp"
    READY = "Ready"
    DRAINING = "Draining"
    BROKEN = "Broken"


@dataclass(slots=True)
class Readiness:
    """phase, and a sentence about it. The service exists in READY and DRAINING: a drain still serves. In BROKEN the
    engine answers nothing any more, and the process is about to end.

    current_space: what the service's own name stands for, once somebody has said so.
    """

    phase: Phase = Phase.LOADING
    message: str = "the model is being loaded"
    current_space: str | None = None
    _service: EmbeddingService | None = field(default=None, repr=False)

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.READY

    @property
    def is_broken(self) -> bool:
        return self.phase is Phase.BROKEN

    def move(self, phase: Phase, message: str) -> None:
        self.phase = phase
        self.message = message

    def open(self, service: EmbeddingService) -> None:
        self._service = service
        self.move(Phase.READY, "serving")

    def elsewhere(self) -> str | None:
        """The vector space that the service's own name stands for, if it is not this process's."""
        space = self.current_space
        if space is None or self._service is None or self._service.card.vector_space == space:
            return None
        return space

    def service(self) -> EmbeddingService:
        """Return the service. Raises NotReady, with the reason, while there is none."""
        if self._service is None:
            raise NotReady(f"not ready: {self.message}")
        return self._service
