"""Each field of each small file of every kind of repository, changed: the vectors stay, or the identity changes, or the
start is refused. `make soak` makes every change, `make test` the same few of each file at every run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.census.kinds import build_kind, judge_kind
from tests.census.repositories import Kind, list_kinds
from tests.runtime.model.field_changes import Sample, check_changes
from tests.runtime.model.test_identity_of_every_field import Started, small_files

PER_FILE = int(os.environ.get("EMBEDSERVE_CHANGES_PER_FILE", "3"))
"""3 of some 80 kinds take two minutes; `make soak` sets more than any file has."""


def read_files(folder: Path) -> list[Path]:
    """The small files, the tokenizer's own with them."""
    return [*small_files(folder), *sorted(folder.rglob("tokenizer.json"))]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", list_kinds(), ids=str)
def test_no_field_of_a_repository_gives_other_vectors_under_one_identity(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "kind"
    home.mkdir()
    built = build_kind(kind, home)
    if not judge_kind(built).is_served:  # test_census.py holds the words
        return
    sample = Sample(str(kind), PER_FILE)
    check_changes(built.folder, Started.from_folder, read_files, monkeypatch, sample=sample)
