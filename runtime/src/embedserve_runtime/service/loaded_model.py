"""Describes the model that a service answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from embedserve_runtime.forward.engine import EngineDescription
from embedserve_runtime.memory.fitting import MemoryFit
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.scheduling.policy import Limits


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to answer requests.

    limits: of its batches and its queue. engines: those that run it, memory: what it takes, both for `/info`.
    task_index: index of this card's adapter task; 0 is the default one.
    """

    card: ModelCard
    limits: Limits
    engines: Sequence[EngineDescription]
    memory: MemoryFit | None = None
    task_index: int = 0

    def list_other_task_models(self) -> list[LoadedModel]:
        """List the model once for each other adapter task, with the card and the index of that task."""
        cards = enumerate(self.card.other_tasks, start=1)
        return [replace(self, card=card, task_index=index) for index, card in cards]
