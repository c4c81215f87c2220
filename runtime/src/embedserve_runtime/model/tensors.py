"""The tensors of a model: those of its encoder, of its modules, and of heads that have files of their own.

A model's card and its tensors are all that it is built from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.checkpoint import SINGLE_FILE, Checkpoint
from embedserve_runtime.model.pipeline import DenseLayer
from embedserve_runtime.model.torch_files import TorchFile

NamedTensor = tuple[str, NDArray[np.generic]]


class TensorReader(Protocol):
    """Reads tensors by name from one or several files: a `Checkpoint` or a `TorchFile`."""

    @property
    def names(self) -> frozenset[str]: ...

    def read_tensor(self, name: str) -> NDArray[np.generic]: ...


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """Opens the tensors of a model by paths relative to its folder, `root`."""

    root: Path

    def open_checkpoint(self, folder: str) -> Checkpoint:
        """Open the tensors of an encoder or a module, by its folder. Raises ModelFileMissing or ModelInvalid."""
        return Checkpoint.open(self.root / folder)

    def adapter(self, folder: str) -> Checkpoint:
        """Open the tensors of the LoRA adapter in a folder. Raises ModelFileMissing or ModelInvalid."""
        return Checkpoint.open_adapter(self.root / folder)

    def open(self, path: str) -> TensorReader:
        """Open a file of torch.save, or the folder of a module. Raises ModelFileMissing or ModelInvalid."""
        return TorchFile(self.root / path) if path.endswith(".pt") else self.open_checkpoint(path)


@dataclass(frozen=True, slots=True)
class TrackedTensors(ModelTensors):
    """Opens each folder once, so that it can be said which tensors nobody has read.

    opened: the checkpoints by their folders. adapters: those of LoRA adapters.
    """

    opened: dict[str, Checkpoint] = field(default_factory=dict)
    adapters: dict[str, Checkpoint] = field(default_factory=dict)

    def open_checkpoint(self, folder: str) -> Checkpoint:
        if folder not in self.opened:
            self.opened[folder] = Checkpoint.open(self.root / folder)
        return self.opened[folder]

    def adapter(self, folder: str) -> Checkpoint:
        if folder not in self.adapters:
            self.adapters[folder] = Checkpoint.open_adapter(self.root / folder)
        return self.adapters[folder]


def read_dense_tensors(tensors: ModelTensors, layers: Iterable[DenseLayer]) -> Iterator[NamedTensor]:
    """Read the tensors of the sentence-transformers Dense modules, as `dense.<number>.weight`, `.bias` and `.residual`:
    W, b and R."""
    for number, layer in enumerate(layers):
        checkpoint = tensors.open_checkpoint(layer.folder)
        parts = {"weight": "linear.weight"}
        if layer.bias:
            parts["bias"] = "linear.bias"
        if layer.projects_residual:
            parts["residual"] = "residual.weight"
        for part, tensor in parts.items():
            if tensor not in checkpoint.names:
                raise ModelInvalid(f"{layer.folder}/{SINGLE_FILE} lacks the tensor {tensor}")
            yield f"dense.{number}.{part}", checkpoint.read_tensor(tensor)
