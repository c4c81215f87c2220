"""Keeps the weights of a written graph in a file from which ONNX Runtime maps them.

Handed over as arrays they would be in memory twice: once as they are, once packed for the products. From a file the
library maps one tensor, packs it and lets go of the map. Those that it does not pack stay mapped after the file's
name is gone.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from embedserve_runtime.errors import ConfigError

FILE = "weights"


@contextmanager
def spool_arrays(model: onnx.ModelProto, arrays: dict[str, NDArray[np.generic]]) -> Iterator[Path]:
    """Write arrays into a weights file, and yield its folder for as long as a session is being made. The initializers
    of `model` that bear names of `arrays` point into the file; `arrays` is emptied.

    Raises ConfigError where the folder for temporary files cannot hold them.
    """
    size = sum(array.nbytes for array in arrays.values())
    try:
        with tempfile.TemporaryDirectory(prefix="embedserve-") as folder:
            write_weights(Path(folder) / FILE, model, drain_arrays(arrays))
            yield Path(folder)
    except OSError as error:
        raise ConfigError(
            f"the weights ({size} bytes) cannot be written to {tempfile.gettempdir()} while the model is loaded: "
            f"{error.strerror}; make room there, or set TMPDIR to a folder with room"
        ) from error


def drain_arrays(arrays: dict[str, NDArray[np.generic]]) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Iterate the arrays by name, and release each one once the next is asked for."""
    for name in list(arrays):
        yield name, arrays.pop(name)


def write_weights(
    path: Path, model: onnx.ModelProto, arrays: Iterable[tuple[str, NDArray[np.generic]]]
) -> None:
    """Write arrays into the file and have the initializers of `model` that bear their names point there."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    with path.open("wb") as file:
        for name, array in arrays:
            # A map begins at a page.
            offset = file.seek(-file.tell() % mmap.ALLOCATIONGRANULARITY, 1)
            file.write(np.ascontiguousarray(array).data)
            del tensors[name].external_data[:]
            for key, value in (("location", path.name), ("offset", offset), ("length", array.nbytes)):
                tensors[name].external_data.add(key=key, value=str(value))
