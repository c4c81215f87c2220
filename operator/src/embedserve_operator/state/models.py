"""Holds what pods and Jobs have reported about a model."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.api.status import AdapterTask, ModelMemory


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of a model: its files, and what it takes in memory where the runtime has planned that."""

    file_bytes: int
    memory: ModelMemory | None = None


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The report of a pod's fetch container on the model that it put into the store."""

    source: str
    revision: str | None
    digest: str | None
    size_bytes: int | None
    dimensions: int | None
    vector_space: str | None
    licence: str | None = None
    """The licence as the source names it."""
    outputs: tuple[str, ...] = ()
    """The outputs that requests can ask for, in the words of the API; empty where nothing was reported."""
    onnx_outputs: tuple[str, ...] | None = None
    """The outputs that an ONNX file of the model can give; None where nothing was reported."""
    guesses_pooling: bool = False
    """Indicates that no file of the model says how to pool, and the mean is taken; False too where nothing was
    reported.
    """
    former_vector_space: str | None = None
    """The name that releases before `vs2-` gave the same vector space; None where they had another one, or nothing was
    reported.
    """
    adapter_tasks: tuple[AdapterTask, ...] = ()
    """The tasks that the model has adapters for, those that are served first."""
    memory: ModelMemory | None = None
    """The memory that the model takes; None where it is not known, or the runtime reports none."""
    needs_export: bool = False
    """Indicates that the model belongs to no family of the runtime: its outputs are known only after it was exported.
    """

    @property
    def size(self) -> ModelSize | None:
        """The size of the model; None where nothing was reported."""
        return None if self.size_bytes is None else ModelSize(self.size_bytes, self.memory)


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """The facts that a Job has found out about the model of a revision, before its pods report anything."""

    revision: str
    report: ModelReport
