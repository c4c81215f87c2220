"""Each field of each small file, changed: the vectors stay, or the identity changes, or the start is refused.

So two models that make different vectors do not carry one name, whatever their files differ in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.forward.batch import PackedBatch, Tokens
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ClassifierHead
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.service import EmbedQuery, Role
from embedserve_runtime.service.postprocessing import postprocess_dense
from embedserve_runtime.service.roles import is_query, resolve_prompt
from embedserve_runtime.tokenizing import InputEncoders, TextTokenizer, TruncationRules
from tests.runtime.heads.head_runner import runner_of
from tests.runtime.model.field_changes import Answers, check_changes
from tests.runtime.model.identity_folders import FOLDERS, MORE_FOLDERS, TASKS, Build

# Known words, an unknown one, repeated ones, and a text that is longer than any of the models takes.
TEXTS = ["ba de fi", "Ba ku zz", "bai lou ba ba <mask>", "ka pe " * 60]
PAIRS = [("ba de", "fi ku"), ("ba", "ka pe " * 60)]
ROLES: tuple[Role | None, ...] = (None, "query", "document")


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
        logits = runner.run(PackedBatch.pack(batch), OutputKind.LOGITS).logits
        assert logits is not None
        yield logits
    yield np.array([*card.head.labels, card.head.scores])


def _vectors(runner: Runner, tokenizer: TextTokenizer) -> Iterator[NDArray[Any]]:
    card, encoders = runner.card, InputEncoders.for_model(runner.card, tokenizer)
    rules = TruncationRules(True, card.tokenizer.truncation_side)
    queries = [EmbedQuery(TEXTS, role=role) for role in ROLES]
    queries += [EmbedQuery(TEXTS, prompt_name=name) for name in card.prompts]
    handled: set[tuple[bool, str]] = set()
    for query in queries:
        try:
            encoding = is_query(card, query), resolve_prompt(card, query)
        except InvalidInput:  # no default role
            continue
        # Once for all names of a prompt: a name for an empty one makes no other vectors than no name.
        if encoding not in handled:
            handled.add(encoding)
            encoder = encoders.queries if encoding[0] else encoders.documents
            yield from _run(runner, query, encoder.encode(TEXTS, encoding[1], rules))


def _run(runner: Runner, query: EmbedQuery, sequences: Any) -> Iterator[NDArray[Any]]:
    card: ModelCard = runner.card
    batch: list[Tokens] = list(sequences)
    results = runner.run(PackedBatch.pack(batch), card.outputs & ~OutputKind.HIDDEN)
    if results.dense is not None:
        yield postprocess_dense(card, results.dense, query)
    for sparse in results.sparse or []:
        yield np.array(sparse.indices)
        yield np.array(sparse.values)
    yield from results.multi_vectors or []


# Read beside those that end with .json.
OTHER_FILES = ("README.md", "artifact.metadata", "chat_template.jinja")


def small_files(folder: Path) -> list[Path]:
    """The small files that are read, without the tokenizer's own and the index of weights."""
    paths = (path for path in sorted(folder.rglob("*.json")) if path.name != "tokenizer.json")
    other_files = (path for name in OTHER_FILES for path in sorted(folder.rglob(name)))
    return [*(path for path in paths if not path.name.endswith(".index.json")), *other_files]


@pytest.mark.parametrize(("name", "build"), FOLDERS.items(), ids=FOLDERS)
def test_no_field_gives_other_vectors_under_one_identity(
    name: str, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path)
    check_changes(tmp_path / "saved", Started.from_folder, small_files, monkeypatch, TASKS.get(name, "auto"))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "build"), MORE_FOLDERS.items(), ids=MORE_FOLDERS)
def test_nor_does_any_of_other_families_and_heads(
    name: str, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path)
    check_changes(tmp_path / "saved", Started.from_folder, small_files, monkeypatch, TASKS.get(name, "auto"))
