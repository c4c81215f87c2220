"""Describes the model that a service answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from embedserve_runtime.forward.engine import EngineDescription
from embedserve_runtime.memory.fitting import MemoryFit
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.scheduling.policy import Limits


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is ready to answer requests.

    limits: of its batches and its queue. engines: those that run it, memory: what it takes, both for `/info`. task: the
    number of the card's task.
    """

    card: ModelCard
    limits: Limits
    engines: Sequence[EngineDescription]
    memory: MemoryFit | None = None
    task: int = 0

    def list_other_tasks(self) -> list[ServedModel]:
        """List the same model as what serves its other tasks."""
        cards = enumerate(self.card.other_tasks, start=1)
        return [replace(self, card=card, task=number) for number, card in cards]
