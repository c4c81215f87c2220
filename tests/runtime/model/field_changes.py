"""Starts a folder with each change of each field of some of its files: what it answers stays, or its identity changes,
or the start is refused with the file or the key.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from embedserve_runtime.errors import ConfigError, ModelError
from embedserve_runtime.model.files import FileModel, ModelFile
from tests.runtime.model.file_formats import format_of
from tests.runtime.model.mutations import Mutation, absent_fields, mutations_of

MAX_DIFFERENCE = 1e-6

Answers = list[NDArray[Any]]


class StartedModel(Protocol):
    """A model that has started from a folder."""

    @property
    def space(self) -> str:
        """Its identity."""
        ...

    def answers(self) -> Answers:
        """All that it answers to fixed texts."""
        ...


Start = Callable[[Path, str], StartedModel]
"""Starts a folder with a task. Raises ModelError or ConfigError."""


def same(ours: Answers, theirs: Answers) -> bool:
    return len(ours) == len(theirs) and all(map(_close, ours, theirs))


def _close(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if a.shape != b.shape or a.dtype.kind in "USO":
        return bool(np.array_equal(a, b))
    return bool(np.allclose(a, b, rtol=0, atol=MAX_DIFFERENCE))


class ReadShapes:
    """The shapes that each file of a folder is read as."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: dict[Path, set[type[FileModel]]] = {}
        parse = ModelFile.parse

        def note(file: ModelFile, shape: Any) -> Any:
            if isinstance(shape, type) and issubclass(shape, FileModel):
                self.found.setdefault(file.path, set()).add(shape)
            return parse(file, shape)

        monkeypatch.setattr(ModelFile, "parse", note)


@dataclass(frozen=True)
class Sample:
    """The same changes at every run: at most per_file of each file. seed: says which."""

    seed: str
    per_file: int

    def choose(self, file: Path, mutations: Sequence[Mutation]) -> Sequence[Mutation]:
        if len(mutations) <= self.per_file:
            return mutations
        return random.Random(f"{self.seed} {file}").sample(mutations, self.per_file)


def list_changes(path: Path, content: Any, shapes: ReadShapes) -> list[Mutation]:
    """Return each change of a file's content once."""
    changes = list(mutations_of(content))
    if isinstance(content, dict):
        for shape in shapes.found.get(path, ()):
            changes += absent_fields(shape, content)
        for name, values in format_of(path).absent.items():
            changes += [Mutation((name,), value) for value in values if content.get(name) != value]
    return list({str(change): change for change in reversed(changes)}.values())


def check_changes(
    folder: Path,
    start: Start,
    files_of: Callable[[Path], Sequence[Path]],
    monkeypatch: pytest.MonkeyPatch,
    task: str = "auto",
    *,
    sample: Sample | None = None,
) -> None:
    """Fail with each change that gives other answers under one identity, or is refused without a file or key.

    sample: which changes are made; None for all.
    """
    shapes = ReadShapes(monkeypatch)
    unchanged = Unchanged(folder, start, task)
    faults = []
    for path in files_of(folder):
        file, content = path.relative_to(folder), format_of(path).parse(path.read_text())
        mutations = list_changes(path, content, shapes)
        for mutation in mutations if sample is None else sample.choose(file, mutations):
            fault = unchanged.find_fault(file, format_of(path).dump(mutation.apply(content)), mutation.key)
            if fault:
                faults.append(f"{file}: {mutation}: {fault}")
    assert not faults, "\n".join(faults)


class Unchanged:
    """A folder as it was before a change, started."""

    def __init__(self, folder: Path, start: Start, task: str) -> None:
        self._folder, self._start, self._task = folder, start, task
        self._changed = folder.parent / "changed" / folder.name
        self._files = {path.name for path in folder.rglob("*")}
        before = start(folder, task)
        self._space, self._answers = before.space, before.answers()

    def find_fault(self, file: Path, text: str, key: str) -> str:
        """Start the folder with another text of a file. Returns what is wrong then, empty for nothing.

        key: of the field that was changed.
        """
        shutil.rmtree(self._changed, ignore_errors=True)
        _link(self._folder, self._changed)
        (self._changed / file).unlink()
        (self._changed / file).write_text(text)
        try:
            after = self._start(self._changed, self._task)
        except (ModelError, ConfigError) as refused:
            if any(word in refused.message for word in (*self._files, key)):
                return ""
            return f"refused without a file or key: {refused.message}"
        if after.space == self._space and not same(after.answers(), self._answers):
            return "one identity, other answers"
        return ""


def _link(folder: Path, target: Path) -> None:
    """A copy of a folder whose files are links."""
    for path in folder.rglob("*"):
        copy = target / path.relative_to(folder)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(path)
