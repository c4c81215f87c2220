"""Tensors out of a small file of `torch.save`, without torch and without `pickle`.

Such a file is a zip archive: `NAME/data.pkl`, a pickle that says which tensors there are, and `NAME/data/KEY`, their
bytes. A pickle is a program that can call anything, so it is not run: the few instructions that a dictionary of
tensors needs are interpreted here, and every other one is refused. Format: `torch.serialization` of torch 1.6 to 2.15.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import ModelFileMissing, ModelInvalid

# Heads of BGE-M3 take 4 MiB; whole models do not come this way.
MAX_FILE_BYTES = 256 * 2**20
# Some 100 bytes a tensor.
MAX_PICKLE_BYTES = 2**20

_DICT = "collections OrderedDict"
_TENSOR = "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"
_DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "torch DoubleStorage": np.dtype(np.float64),
        "torch FloatStorage": np.dtype(np.float32),
        "torch HalfStorage": np.dtype(np.float16),
        "torch BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    }
)


@dataclass(frozen=True, slots=True)
class _Name:
    """A class or function that the pickle names."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: np.dtype[Any]
    count: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A view of a storage, in elements of it."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Refused(Exception):
    """The file has something that a dictionary of tensors does not need."""


class TorchFile:
    """Read access to the tensors of one file, by name."""

    def __init__(self, path: Path) -> None:
        """Read the file's index. Raises ModelFileMissing or ModelInvalid, naming the file and what it has."""
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise _Refused(f"it has more than {MAX_FILE_BYTES} bytes")
            with zipfile.ZipFile(path) as archive:
                self._tensors = _read(archive)
        except FileNotFoundError as error:
            raise ModelFileMissing(f"{path.name} not found in {path.parent}") from error
        except (_Refused, ValueError, RuntimeError, zipfile.BadZipFile, OSError) as error:
            raise ModelInvalid(
                f"{path} is not read: {error}. Of torch.save's files, dictionaries of tensors are read; save the "
                "state_dict with a current torch, or as safetensors"
            ) from error

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def read_tensor(self, name: str) -> NDArray[np.generic]:
        """Read a tensor as stored."""
        return self._tensors[name]


def _read(archive: zipfile.ZipFile) -> dict[str, NDArray[np.generic]]:
    described = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
    if len(described) != 1:
        raise _Refused("it is not a zip archive with one data.pkl")
    root = described[0].filename.removesuffix("data.pkl")
    if described[0].file_size > MAX_PICKLE_BYTES:
        raise _Refused(f"its data.pkl has more than {MAX_PICKLE_BYTES} bytes")
    order = f"{root}byteorder"
    if order in archive.namelist() and _read_entry(archive, order, len(b"little")) != b"little":
        raise _Refused("its bytes are not in little-endian order")
    described_tensors = _interpret(_read_entry(archive, described[0].filename, MAX_PICKLE_BYTES))
    return {name: _load(archive, root, tensor) for name, tensor in described_tensors.items()}


def _read_entry(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Read the entry's bytes, at most `limit`: a packed entry could grow without bound."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED:
        raise _Refused(f"its entry {name} is compressed")
    if entry.file_size > limit:
        raise _Refused(f"its entry {name} has {entry.file_size} bytes, expected at most {limit}")
    return archive.read(entry)


def _load(archive: zipfile.ZipFile, root: str, tensor: _Tensor) -> NDArray[np.generic]:
    storage, count = tensor.storage, prod(tensor.shape)
    contiguous = tuple(prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))
    if tensor.strides != contiguous or not 0 <= tensor.offset <= storage.count - count:
        raise _Refused(f"it has a tensor of shape {list(tensor.shape)} that is not laid out row by row")
    name, size = f"{root}data/{storage.key}", storage.count * storage.dtype.itemsize
    if name not in archive.namelist():
        raise _Refused(f"it lacks the entry {name}")
    content = _read_entry(archive, name, size)
    if len(content) != size:
        raise _Refused(f"its entry {name} has {len(content)} bytes, expected {size}")
    values = np.frombuffer(content, dtype=storage.dtype)
    return values[tensor.offset : tensor.offset + count].reshape(tensor.shape)


def _interpret(pickle: bytes) -> dict[str, _Tensor]:
    """Return the tensors that the pickle describes, by name."""
    machine = _Machine()
    for instruction, argument, _ in pickletools.genops(pickle):
        handle = _INSTRUCTIONS.get(instruction.name)
        if handle is None:
            raise _Refused(f"its pickle has the instruction {instruction.name}")
        try:
            handle(machine, argument)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise _Refused(f"its pickle is damaged at {instruction.name}") from error
    tensors = machine.stack[-1] if machine.stack else None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, _Tensor) for name, tensor in tensors.items()
    ):
        raise _Refused("it holds something else than a dictionary of tensors")
    return tensors


class _Machine:
    """The pickle machine's stack and memory, with values that are data only."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memory: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self, _: Any) -> None:
        self._marks.append(len(self.stack))

    def put(self, index: int) -> None:
        self._memory[index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.push(self._memory[index])

    def push_name(self, name: str) -> None:
        if name not in (_DICT, _TENSOR, _PARAMETER, *_DTYPES):
            raise _Refused(f"its pickle names {name.replace(' ', '.')}")
        self.push(_Name(name))

    def pop_to_mark(self) -> list[Any]:
        start = self._marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def push_tuple(self, count: int) -> None:
        self.push(tuple(reversed([self.stack.pop() for _ in range(count)])))

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise TypeError
        target.update(zip(values[::2], values[1::2], strict=True))

    def push_storage(self, _: Any) -> None:
        kind, storage, key, _device, count = self.stack.pop()
        if kind != "storage" or not isinstance(key, str) or not isinstance(count, int):
            raise TypeError
        self.push(_Storage(key, _DTYPES[storage.name], count))

    def call(self, _: Any) -> None:
        arguments, called = self.stack.pop(), self.stack.pop()
        match called, arguments:
            case _Name(name=name), () if name == _DICT:
                self.push({})
            case _Name(name=name), (_Storage() as storage, int(offset), tuple(shape), tuple(strides), *_) if (
                name == _TENSOR
            ):
                if not all(isinstance(size, int) and size >= 0 for size in (*shape, *strides)):
                    raise TypeError
                self.push(_Tensor(storage, offset, shape, strides))
            case _Name(name=name), (_Tensor() as tensor, *_) if name == _PARAMETER:
                self.push(tensor)
            case _:
                raise TypeError


def _set_item(machine: _Machine, _: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items([key, value])


def _build_constant(value: object) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(value)


_INSTRUCTIONS: Mapping[str, Callable[[_Machine, Any], None]] = MappingProxyType(
    {
        "PROTO": lambda machine, _: None,
        "STOP": lambda machine, _: None,
        "GLOBAL": _Machine.push_name,
        "MARK": _Machine.mark,
        "REDUCE": _Machine.call,
        "BINPERSID": _Machine.push_storage,
        # The state of a dictionary of torch: versions of its modules.
        "BUILD": lambda machine, _: machine.stack.pop(),
        "SETITEM": _set_item,
        "SETITEMS": lambda machine, _: machine.set_items(machine.pop_to_mark()),
        "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_to_mark())),
        "TUPLE1": lambda machine, _: machine.push_tuple(1),
        "TUPLE2": lambda machine, _: machine.push_tuple(2),
        "TUPLE3": lambda machine, _: machine.push_tuple(3),
        "EMPTY_TUPLE": _build_constant(()),
        "EMPTY_DICT": lambda machine, _: machine.push({}),
        "NONE": _build_constant(None),
        "NEWTRUE": _build_constant(True),
        "NEWFALSE": _build_constant(False),
        **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.put),
        **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.get),
        **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE"), _Machine.push),
    }
)
