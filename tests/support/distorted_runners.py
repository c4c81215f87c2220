"""Runners that give another one's results with an error of a known size."""

from __future__ import annotations

from dataclasses import dataclass, field

from embedserve_runtime.forward.engine import EngineDescription, MemoryStatus
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.runners.base import Runner


@dataclass(frozen=True, kw_only=True)
class DistortedRunner:
    """All of a runner but `run`, which each kind of error writes."""

    exact: Runner
    memory: MemoryStatus = field(default_factory=MemoryStatus)
    recomputed: int = 0

    @property
    def card(self) -> ModelCard:
        return self.exact.card

    @property
    def engine(self) -> EngineDescription:
        return self.exact.engine
