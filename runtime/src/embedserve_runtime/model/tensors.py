"""The tensors of a model's folder, by the place at which they lie: the encoder, a module, a file of a head.

A model's card and its tensors are all that it is built from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
    """A file or several with tensors by name: a `Checkpoint` or a `TorchFile`."""

    @property
    def names(self) -> frozenset[str]: ...

    def raw(self, name: str) -> NDArray[np.generic]: ...


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """Opens the tensors of a model; places are relative to its folder."""

    folder: Path

    def checkpoint(self, place: str) -> Checkpoint:
        """Open the tensors of an encoder or a module. Raises ModelFileMissing or ModelInvalid."""
        return Checkpoint.open(self.folder / place)

    def open(self, place: str) -> TensorReader:
        """Open a file of torch.save, or the folder of a module. Raises ModelFileMissing or ModelInvalid."""
        return TorchFile(self.folder / place) if place.endswith(".pt") else self.checkpoint(place)


def dense_tensors(tensors: ModelTensors, layers: Iterable[DenseLayer]) -> Iterator[NamedTensor]:
    """Read the tensors of the sentence-transformers Dense modules, as `dense.<number>.weight`, `.bias` and `.residual`:
    W, b and R."""
    for number, layer in enumerate(layers):
        checkpoint = tensors.checkpoint(layer.folder)
        parts = {"weight": "linear.weight"}
        if layer.bias:
            parts["bias"] = "linear.bias"
        if layer.projects_residual:
            parts["residual"] = "residual.weight"
        for part, tensor in parts.items():
            if tensor not in checkpoint.names:
                raise ModelInvalid(f"{layer.folder}/{SINGLE_FILE} lacks the tensor {tensor}")
            yield f"dense.{number}.{part}", checkpoint.raw(tensor)
