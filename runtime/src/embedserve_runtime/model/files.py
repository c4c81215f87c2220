"""Holds the small files of a model folder as values: the content of each, and its JSON as typed models.

`folder` says which files are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from embedserve_runtime.config.problems import describe_problems
from embedserve_runtime.errors import ModelFileMissing, ModelInvalid

T = TypeVar("T")

# Of one small file; the largest are tokenizers of some 30 MB.
MAX_FILE_BYTES = 2**28
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""The beginning of a file that stands for one which Git LFS keeps elsewhere."""
LFS_FAULT = "is a pointer of Git LFS instead of the file; fetch it with `git lfs pull`"


class FileModel(BaseModel):
    """Base of the models of JSON files that others write: unknown keys are ignored. A validator is made when a first
    file of its kind is read: a model folder has few of them."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


@cache
def _get_validator(shape: Any) -> TypeAdapter[Any]:
    """Cache one validator for each type, of which the code has few."""
    return TypeAdapter(shape)


@dataclass(frozen=True)
class ModelFile:
    """A small file that has been read.

    content: its bytes. fault: why they could not be had; it counts once the file is needed.
    """

    path: Path
    content: bytes
    fault: str | None = None

    def as_bytes(self) -> bytes:
        """Return the content. Raises ModelInvalid where it could not be had."""
        if self.fault is not None:
            raise ModelInvalid(f"{self.path} {self.fault}")
        return self.content

    def as_text(self) -> str:
        """Return the content as text. Raises ModelInvalid."""
        try:
            return self.as_bytes().decode()
        except UnicodeDecodeError as error:
            raise ModelInvalid(f"{self.path} is not valid UTF-8: {error}") from error

    def parse(self, shape: type[T]) -> T:
        """Return the JSON as `shape`, checked once for each. Raises ModelInvalid, naming file and keys."""
        if shape not in self._parsed:
            try:
                validator = _get_validator(shape)  # type: ignore[arg-type]  # T has a hash
                self._parsed[shape] = validator.validate_python(self._json)
            except ValidationError as error:
                raise ModelInvalid(f"{self.path}: {describe_problems(error)}") from error
        parsed: T = self._parsed[shape]
        return parsed

    @cached_property
    def _parsed(self) -> dict[Any, Any]:
        """The content by the types that it was parsed as."""
        return {}

    @cached_property
    def _json(self) -> object:
        """Decoded once, however many parts of the description are read from it."""
        try:
            return json.loads(self.as_bytes())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ModelInvalid(f"{self.path} is not valid JSON: {error}") from error


def read_file(path: Path) -> ModelFile | None:
    """Read a small file; None where there is none."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
                return ModelFile(path, b"", f"has more than {MAX_FILE_BYTES} bytes")
            content = file.read()
            return ModelFile(path, content, LFS_FAULT if content.startswith(LFS_POINTER) else None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return ModelFile(path, b"", f"cannot be read: {error.strerror}")


def check_lfs_pointer(path: Path) -> None:
    """Raise ModelInvalid where a file, which cannot be read as what it is named, is a pointer of Git LFS."""
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise ModelInvalid(f"{path} {LFS_FAULT}")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model folder: the content of the small ones, and the paths of all.

    path: the folder. small: by path, those of the modules' folders included.
    """

    path: Path
    small: Mapping[Path, ModelFile]
    paths: frozenset[Path]

    def __contains__(self, name: str) -> bool:
        path = self.path / name
        return path in self.small or path in self.paths

    def enter_folder(self, folder: str) -> ModelFiles:
        """Return the same files as seen from a folder inside this one."""
        return replace(self, path=self.path / folder)

    @property
    def names(self) -> list[str]:
        """Paths of all files inside the folder, relative to it."""
        return [
            path.relative_to(self.path).as_posix() for path in self.paths if path.is_relative_to(self.path)
        ]

    def find(self, name: str) -> ModelFile | None:
        """Return the small file of a name; None where there is none."""
        return self.small.get(self.path / name)

    def require(self, name: str) -> ModelFile:
        """Return the small file of a name. Raises ModelFileMissing."""
        file = self.find(name)
        if file is None:
            path = self.path / name
            raise ModelFileMissing(f"{path.name} not found in {path.parent}")
        return file

    def parse(self, name: str, shape: type[T]) -> T:
        """Parse a JSON file. Raises ModelFileMissing or ModelInvalid, naming the file."""
        return self.require(name).parse(shape)

    def parse_if_there(self, name: str, shape: type[T], otherwise: T) -> T:
        """Parse a JSON file; return `otherwise` where there is none. Raises ModelInvalid."""
        file = self.find(name)
        return otherwise if file is None else file.parse(shape)
