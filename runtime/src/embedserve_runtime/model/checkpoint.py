"""The tensors of a model folder: which files hold them, which of them fill a description, their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Protocol

import ml_dtypes  # noqa: F401  # tells numpy what bfloat16 is; without it safetensors cannot read such a file
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from embedserve_runtime.errors import ModelFileMissing, ModelInvalid
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.files import check_lfs_pointer, read_file
from embedserve_runtime.model.hf_files.transformers import WeightsIndex
from embedserve_runtime.model.parameter_names import Parameter, ParameterNames, TensorSource
from embedserve_runtime.model.pickles import ADVICE, can_read, read_pickle

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_FILE = "pytorch_model.bin"
PICKLE_INDEX_FILE = "pytorch_model.bin.index.json"
BLOCK_BYTES = 32 << 20
"""Bytes of a tensor that are in memory at once where it is read in blocks."""
_MAX_NUMBER_BYTES = 4
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")


class StoredTensors(Protocol):
    """The tensors of an encoder, by the names that they have in its files."""

    @property
    def names(self) -> frozenset[str]: ...

    def read_tensor(self, name: str) -> NDArray[np.generic]: ...

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...


class Checkpoint:
    """Read access to the weights of one folder: safetensors files, of which tensors are read when asked for, or pickles
    where torch is there."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._file_of: dict[str, Path] = {}
        self._pickled: dict[str, NDArray[np.generic]] = {}
        self._read: set[str] = set()
        for file in files:
            if file.suffix == ".bin":
                self._pickled |= read_pickle(file)
                continue
            try:
                with safe_open(file, framework="np") as tensors:
                    self._file_of.update(dict.fromkeys(tensors.keys(), file))
            except FileNotFoundError as error:
                raise ModelFileMissing(f"{file.name} not found in {file.parent}") from error
            except (SafetensorError, OSError) as error:
                check_lfs_pointer(file)
                raise ModelInvalid(f"{file} is not a readable safetensors file: {error}") from error

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Open the encoder's weights. Raises ModelFileMissing with what was looked for and what is there."""
        if (folder / SINGLE_FILE).exists():
            return cls([folder / SINGLE_FILE])
        indexed = _list_indexed_files(folder / INDEX_FILE)
        if indexed:
            return cls(indexed)
        pickles = _list_pickles(folder)
        if pickles and can_read():
            return cls(pickles)
        hint = (
            f"; {', '.join(path.name for path in pickles)}: {ADVICE}" if pickles else _advise_graphs(folder)
        )
        raise ModelFileMissing(f"no weights in {folder}: looked for {SINGLE_FILE} and {INDEX_FILE}{hint}")

    @classmethod
    def open_adapter(cls, folder: Path) -> Checkpoint:
        """Open the tensors of a LoRA adapter. Raises ModelFileMissing or ModelInvalid."""
        path = next((folder / name for name in ADAPTER_FILES if (folder / name).exists()), None)
        if path is None:
            raise ModelFileMissing(
                f"no tensors of the LoRA adapter in {folder}: looked for {ADAPTER_FILES[0]}; if the weights are merged "
                "with it already, take adapter_config.json away"
            )
        if path.suffix == ".bin" and not can_read():
            raise ModelFileMissing(f"no {ADAPTER_FILES[0]} in {folder}; {path.name}: {ADVICE}")
        return cls([path])

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._file_of) | frozenset(self._pickled)

    @property
    def unread(self) -> list[str]:
        """Names of the tensors of which nothing has been read through this object, sorted."""
        return sorted(self.names - self._read)

    def mark_read(self, name: str) -> None:
        """Count a tensor as read that another one stands for."""
        self._read.add(name)

    def read_tensor(self, name: str) -> NDArray[np.generic]:
        """Read a tensor as stored, in its own dtype (bfloat16 is that of ml_dtypes)."""
        self._read.add(name)
        if name in self._pickled:
            return self._pickled[name]
        file = self._file_of[name]
        try:
            with safe_open(file, framework="np") as tensors:
                tensor: NDArray[np.generic] = tensors.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelInvalid(f"{file}: tensor {name} cannot be read: {error}") from error
        return tensor

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Read the rows from `start` to before `stop` of a tensor as stored, without reading the others."""
        self._read.add(name)
        if name in self._pickled:
            return self._pickled[name][start:stop]
        file = self._file_of[name]
        try:
            with safe_open(file, framework="np") as tensors:
                rows: NDArray[np.generic] = tensors.get_slice(name)[start:stop]
        except (SafetensorError, OSError) as error:
            raise ModelInvalid(f"{file}: rows of tensor {name} cannot be read: {error}") from error
        return rows

    def read_blocks(self, name: str) -> Iterator[NDArray[np.generic]]:
        """Read a tensor as stored, rows by rows: of a large one there are at most BLOCK_BYTES in memory."""
        shape = self.shape(name)
        if _fits_block(shape):
            yield self.read_tensor(name)
            return
        for start, stop in _divide_rows(0, shape):
            yield self.read_rows(name, start, stop)

    def count_bytes(self, name: str) -> int:
        """Return the size of a tensor; of a large one, a row is read."""
        shape = self.shape(name)
        if _fits_block(shape):
            return self.read_tensor(name).nbytes
        return prod(shape) * self.read_rows(name, 0, 1).itemsize

    def shape(self, name: str) -> tuple[int, ...]:
        """Read the shape of a tensor, and nothing else of it."""
        if name in self._pickled:
            return self._pickled[name].shape
        with safe_open(self._file_of[name], framework="np") as tensors:
            return tuple(tensors.get_slice(name).get_shape())

    def read_float32(self, name: str) -> FloatArray:
        """Read a tensor as float32."""
        return self.read_tensor(name).astype(np.float32, copy=False)


def _list_pickles(folder: Path) -> list[Path]:
    if (folder / PICKLE_FILE).exists():
        return [folder / PICKLE_FILE]
    return _list_indexed_files(folder / PICKLE_INDEX_FILE)


def _advise_graphs(folder: Path) -> str:
    """Say how the ONNX files of a folder without weights are run; empty where there are none."""
    graphs = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.onnx"))
    return (
        f"; to run an ONNX file, set model.onnx_file (--onnx-file) to {' or '.join(graphs)}" if graphs else ""
    )


def _list_indexed_files(index: Path) -> list[Path]:
    """List the files that an index names; none where there is no index. Raises ModelInvalid."""
    file = read_file(index)
    names = [] if file is None else sorted(set(file.parse(WeightsIndex).weight_map.values()))
    return [index.parent / name for name in names]


def resolve(encoder: Encoder, checkpoint: StoredTensors) -> Mapping[str, TensorSource]:
    """Map our parameter names to where the checkpoint keeps them, for every parameter of the description.

    Raises ModelInvalid naming every parameter that the checkpoint lacks.
    """
    names = checkpoint.names
    prefix = _find_prefix(encoder.parameter_names, names)
    resolved: dict[str, TensorSource] = {}
    missing: list[str] = []
    for parameter in encoder.parameters():
        candidates = _list_candidates(encoder.parameter_names, parameter, prefix)
        stored = next((source for source in candidates if source.tensor in names), None)
        if stored is None:
            missing.append(candidates[0].tensor)
        else:
            resolved[parameter.name] = stored
    if missing:
        listed = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ModelInvalid(
            f"the checkpoint lacks {len(missing)} tensors of a {encoder.family} encoder: {listed}; "
            "config.json asks for them"
        )
    return resolved


def _find_prefix(names: ParameterNames, available: frozenset[str]) -> str:
    tensors = [source.tensor for source in names.sources["embeddings.word.weight"]]
    matching = (
        prefix for prefix in names.prefixes if any(prefix + tensor in available for tensor in tensors)
    )
    return next(matching, names.prefixes[0])


def _list_candidates(names: ParameterNames, parameter: Parameter, prefix: str) -> list[TensorSource]:
    return [
        replace(source, tensor=prefix + source.tensor.format(layer=parameter.layer))
        for source in names.sources[parameter.pattern]
    ]


class Weights:
    """The tensors of an encoder under our parameter names, checked against the description's shapes."""

    def __init__(self, encoder: Encoder, checkpoint: StoredTensors) -> None:
        self._checkpoint = checkpoint
        self._source_of = resolve(encoder, checkpoint)
        self._shape_of = {parameter.name: parameter.shape for parameter in encoder.parameters()}
        self._on_read: Callable[[int], None] | None = None

    @property
    def size(self) -> int:
        """The number of all values."""
        return sum(map(prod, self._shape_of.values()))

    def with_observer(self, on_read: Callable[[int], None]) -> Weights:
        """Return the same tensors; `on_read` is called with the number of values of each one that is read."""
        observed = copy(self)
        observed._on_read = on_read
        return observed

    def read_tensor(self, parameter: str) -> NDArray[np.generic]:
        """Read a parameter in the dtype on disk. Raises ModelInvalid when the shape is not the description's."""
        source = self._source_of[parameter]
        tensor = self._checkpoint.read_tensor(source.tensor)
        if source.transpose:
            tensor = tensor.T
        if source.parts > 1:
            rows = len(tensor) // source.parts
            tensor = tensor[source.part * rows : (source.part + 1) * rows]
        shape = self._shape_of[parameter]
        if tensor.shape != shape:
            raise ModelInvalid(
                f"tensor {source.tensor} gives {parameter} the shape {list(tensor.shape)}, "
                f"config.json asks for {list(shape)}"
            )
        if self._on_read is not None:
            self._on_read(tensor.size)
        return tensor

    def read_float32(self, parameter: str) -> FloatArray:
        """Read a parameter as float32."""
        return self.read_tensor(parameter).astype(np.float32, copy=False)

    @property
    def names(self) -> list[str]:
        """Our names of the parameters, sorted."""
        return sorted(self._source_of)

    def shape(self, parameter: str) -> tuple[int, ...]:
        """Return the shape of a parameter, as the description has it."""
        return self._shape_of[parameter]

    def read_blocks(self, parameter: str) -> Iterator[NDArray[np.generic]]:
        """Read a parameter as `read_tensor` does, rows by rows: of a large one there are at most BLOCK_BYTES in memory.

        Raises ModelInvalid when the shape is not the description's.
        """
        source, shape = self._source_of[parameter], self._shape_of[parameter]
        stored = (shape[0] * source.parts, *shape[1:])
        if source.transpose or _fits_block(shape) or self._checkpoint.shape(source.tensor) != stored:
            yield self.read_tensor(parameter)
            return
        for start, stop in _divide_rows(source.part * shape[0], shape):
            block = self._checkpoint.read_rows(source.tensor, start, stop)
            if self._on_read is not None:
                self._on_read(block.size)
            yield block


def _fits_block(shape: Sequence[int]) -> bool:
    return prod(shape) * _MAX_NUMBER_BYTES <= BLOCK_BYTES


def _divide_rows(first: int, shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield from which row on to before which the rows from `first` on are read at a time."""
    end = first + shape[0]
    step = max(1, BLOCK_BYTES // (_MAX_NUMBER_BYTES * prod(shape[1:])))
    for start in range(first, end, step):
        yield start, min(start + step, end)
