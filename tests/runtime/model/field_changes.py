"""Starts a folder with each change of each field of some of its files: what it answers stays, or its identity changes,
or the start is refused with the file or the key.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from embedserve_runtime.errors import ConfigError, ModelError
from embedserve_runtime.model.files import FileModel, ModelFile
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
    """Which shapes each file of a folder is read as."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: dict[Path, set[type[FileModel]]] = {}
        parse = ModelFile.parse

        def note(file: ModelFile, shape: Any) -> Any:
            if isinstance(shape, type) and issubclass(shape, FileModel):
                self.found.setdefault(file.path, set()).add(shape)
            return parse(file, shape)

        monkeypatch.setattr(ModelFile, "parse", note)


def changes_of(paths: Sequence[Path], shapes: ReadShapes) -> Iterator[tuple[Path, Any, Mutation]]:
    """Each change with the file that it is made in, and the file's content."""
    for path in paths:
        content = json.loads(path.read_text())
        found = list(mutations_of(content))
        for shape in shapes.found.get(path, ()):
            if isinstance(content, dict):
                found += absent_fields(shape, content)
        for mutation in {str(one): one for one in reversed(found)}.values():
            yield path, content, mutation


def check_changes(
    folder: Path,
    start: Start,
    files_of: Callable[[Path], Sequence[Path]],
    monkeypatch: pytest.MonkeyPatch,
    task: str = "auto",
) -> None:
    """Fail with each change that gives other answers under one identity, or is refused without a file or key."""
    shapes = ReadShapes(monkeypatch)
    before = start(folder, task)
    answers, files = before.answers(), {path.name for path in folder.rglob("*")}
    changed, faults = folder.parent / "changed", []
    for path, content, mutation in changes_of(files_of(folder), shapes):
        file = path.relative_to(folder)
        shutil.rmtree(changed, ignore_errors=True)
        _link(folder, changed)
        (changed / file).unlink()
        (changed / file).write_text(json.dumps(mutation.apply(content)))
        try:
            after = start(changed, task)
        except (ModelError, ConfigError) as refused:
            if not any(word in refused.message for word in (*files, mutation.key)):
                faults.append(f"{file}: {mutation}: refused without a file or key: {refused.message}")
            continue
        if after.space == before.space and not same(after.answers(), answers):
            faults.append(f"{file}: {mutation}: one identity, other answers")
    assert not faults, "\n".join(faults)


def _link(folder: Path, target: Path) -> None:
    """A copy of a folder whose files are links."""
    for path in folder.rglob("*"):
        copy = target / path.relative_to(folder)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(path)
