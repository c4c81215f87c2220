"""The phase of the process between its start and its end, with the service while there is one.

The process sets it, probes read it, routes get the service from it. It never touches the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from embedserve_runtime.errors import NotReady
from embedserve_runtime.service import InferenceService


class Phase(StrEnum):
    LOADING = "Loading"
    WARMING_UP = "WarmingUp"
    READY = "Ready"
    DRAINING = "Draining"
    BROKEN = "Broken"


@dataclass(slots=True)
class Readiness:
    """The state of the process: whether it serves. phase: with a message about it.

    The service exists in READY and DRAINING: a draining process still serves. In BROKEN the engine does not answer any
    more, and the process is about to end.
    current_space: the vector space that the service's name stands for, once the operator has said so.
    """

    phase: Phase = Phase.LOADING
    message: str = "the model is being loaded"
    current_space: str | None = None
    _service: InferenceService | None = field(default=None, repr=False)

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.READY

    @property
    def is_broken(self) -> bool:
        return self.phase is Phase.BROKEN

    def move(self, phase: Phase, message: str) -> None:
        self.phase = phase
        self.message = message

    def open(self, service: InferenceService) -> None:
        self._service = service
        self.move(Phase.READY, "serving")

    def find_forwarding_space(self) -> str | None:
        """Return the vector space to which requests by the service's name are forwarded; None if it is this
        process's."""
        space = self.current_space
        if space is None or self._service is None or self._service.card.makes_space(space):
            return None
        return space

    def service(self) -> InferenceService:
        """Return the service. Raises NotReady, with the reason, while there is none."""
        if self._service is None:
            raise NotReady(f"not ready: {self.message}")
        return self._service
