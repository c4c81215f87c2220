"""Each field of each small file, changed: the vectors stay, or the identity changes, or the start is refused.

So two models that make different vectors do not carry one name, whatever their files differ in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedserve_runtime.engines.base import PackedBatch, Tokens
from embedserve_runtime.engines.results import Output
from embedserve_runtime.errors import ConfigError, InvalidInput, ModelError
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.files import FileModel, ModelFile
from embedserve_runtime.model.heads.description import ClassifierHead
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.service import EmbedQuery, Role
from embedserve_runtime.service.postprocessing import postprocess_dense
from embedserve_runtime.service.roles import is_query, resolve_prompt
from embedserve_runtime.tokenizing import InputEncoders, TextTokenizer, TruncationRules
from tests.runtime.heads.head_runner import runner_of
from tests.runtime.model.identity_folders import FOLDERS, MORE_FOLDERS, TASKS, Build
from tests.runtime.model.mutations import Mutation, absent_fields, mutations_of

# Known words, an unknown one, repeated ones, and a text that is longer than any of the models takes.
TEXTS = ["ba de fi", "Ba ku zz", "bai lou ba ba <mask>", "ka pe " * 60]
PAIRS = [("ba de", "fi ku"), ("ba", "ka pe " * 60)]
ROLES: tuple[Role | None, ...] = (None, "query", "document")
MAX_DIFFERENCE = 1e-6

Answers = list[NDArray[Any]]


@dataclass(frozen=True)
class Started:
    """A model that has started: its tokenizer fits, its tensors are loaded."""

    runner: Runner
    tokenizer: TextTokenizer

    @classmethod
    def from_folder(cls, folder: Path, task: str) -> Started:
        """Start in float32. Raises ModelError or ConfigError."""
        runner = runner_of(folder, "torch", task=task)
        return cls(runner, TextTokenizer.from_card(runner.card))

    @property
    def space(self) -> str:
        return self.runner.card.vector_space

    def answers(self) -> Answers:
        """All that it answers to the texts."""
        of_head = _scores if isinstance(self.runner.card.head, ClassifierHead) else _vectors
        return list(of_head(self.runner, self.tokenizer))


def _scores(runner: Runner, tokenizer: TextTokenizer) -> Iterator[NDArray[Any]]:
    card = runner.card
    assert isinstance(card.head, ClassifierHead)
    rules = TruncationRules(True, card.tokenizer.truncation_side)
    batches: list[Sequence[Tokens]] = [tokenizer.encode_pairs(PAIRS, rules)]
    if card.head.template is None:
        batches.append(tokenizer.encode(TEXTS, card.default_prompt_text, rules))
    for batch in batches:
        logits = runner.run(PackedBatch.pack(batch), Output.LOGITS).logits
        assert logits is not None
        yield logits
    yield np.array([*card.head.labels, card.head.scores])


def _vectors(runner: Runner, tokenizer: TextTokenizer) -> Iterator[NDArray[Any]]:
    card, encoders = runner.card, InputEncoders.for_model(runner.card, tokenizer)
    rules = TruncationRules(True, card.tokenizer.truncation_side)
    queries = [EmbedQuery(TEXTS, role=role) for role in ROLES]
    queries += [EmbedQuery(TEXTS, prompt_name=name) for name in card.prompts]
    done: dict[tuple[bool, str], Answers] = {}
    for query in queries:
        try:
            how = is_query(card, query), resolve_prompt(card, query)
        except InvalidInput:  # no default role
            continue
        if how not in done:
            encoder = encoders.queries if how[0] else encoders.documents
            done[how] = list(_run(runner, query, encoder.encode(TEXTS, how[1], rules)))
        yield from done[how]


def _run(runner: Runner, query: EmbedQuery, sequences: Any) -> Iterator[NDArray[Any]]:
    card: ModelCard = runner.card
    batch: list[Tokens] = list(sequences)
    results = runner.run(PackedBatch.pack(batch), card.outputs & ~Output.HIDDEN)
    if results.dense is not None:
        yield postprocess_dense(card, results.dense, query)
    for sparse in results.sparse or []:
        yield np.array(sparse.indices)
        yield np.array(sparse.values)
    yield from results.multi_vectors or []


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


def small_files(folder: Path) -> dict[str, Any]:
    """The JSON files that are read, without the tokenizer's own."""
    paths = (path for path in sorted(folder.rglob("*.json")) if path.name != "tokenizer.json")
    contents = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in paths}
    return {name: content for name, content in contents.items() if not name.endswith(".index.json")}


def changes_of(folder: Path, shapes: ReadShapes) -> Iterator[tuple[str, Any, Mutation]]:
    """Each change with the file that it is made in, and the file's content."""
    for name, content in small_files(folder).items():
        found = list(mutations_of(content))
        for shape in shapes.found.get(folder / name, ()):
            if isinstance(content, dict):
                found += absent_fields(shape, content)
        for mutation in dict.fromkeys(map(str, found)):
            yield name, content, next(one for one in found if str(one) == mutation)


def check(name: str, build: Build, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(home)
    folder, task = home / "saved", TASKS.get(name, "auto")
    shapes = ReadShapes(monkeypatch)
    before = Started.from_folder(folder, task)
    answers, files = before.answers(), {path.name for path in folder.rglob("*")}
    changed, faults = home / "changed", []
    for file, content, mutation in changes_of(folder, shapes):
        shutil.rmtree(changed, ignore_errors=True)
        _link(folder, changed)
        (changed / file).unlink()
        (changed / file).write_text(json.dumps(mutation.apply(content)))
        try:
            after = Started.from_folder(changed, task)
        except (ModelError, ConfigError) as refused:
            if not any(word in refused.message for word in (*files, mutation.key)):
                faults.append(f"{file}: {mutation}: refused without a file or key: {refused.message}")
            continue
        if after.space == before.space and not same(after.answers(), answers):
            faults.append(f"{file}: {mutation}: one identity, other vectors")
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


@pytest.mark.parametrize(("name", "build"), FOLDERS.items(), ids=FOLDERS)
def test_no_field_gives_other_vectors_under_one_identity(
    name: str, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(name, build, tmp_path, monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "build"), MORE_FOLDERS.items(), ids=MORE_FOLDERS)
def test_nor_does_any_of_other_families_and_heads(
    name: str, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(name, build, tmp_path, monkeypatch)
