"""Rerankers and classifiers of pairs, text in, scores out, against sentence-transformers' CrossEncoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import BertForSequenceClassification

from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.errors import ConfigError, EmbedserveError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.heads.classification import scores
from embedserve_runtime.model.heads.description import ClassifierHead, ScoreFunction, Task
from embedserve_runtime.tokenizing import TextTokenizer
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, greatest, logits_of, runner_of
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import CUT, TEXTS, bert
from tests.support.tolerances import FP32_MAX_ABS_DIFF

PAIRS = [("a query", text) for text in TEXTS]


def folder_of(folder: Path, labels: int, **settings: Any) -> Path:
    names = {number: f"label {number}" for number in range(labels)}
    return bert(folder, BertForSequenceClassification, num_labels=labels, id2label=names, **settings)


def scores_of(folder: Path, engine: str) -> FloatArray:
    runner = runner_of(folder, engine)
    assert runner is not None
    head = runner.card.head
    assert isinstance(head, ClassifierHead)
    ids = TextTokenizer.from_card(runner.card).encode_pairs(PAIRS, CUT)
    return scores(logits_of(runner, ids), head.scores)


ONE_LABEL: dict[str, torch.nn.Module | None] = {
    "by default": None,
    "identity": torch.nn.Identity(),
    "sigmoid": torch.nn.Sigmoid(),
}


@pytest.mark.parametrize("activation", ONE_LABEL.values(), ids=ONE_LABEL.keys())
def test_scores_of_a_reranker_equal_sentence_transformers(
    tmp_path: Path, activation: torch.nn.Module | None
) -> None:
    bare = folder_of(tmp_path / "bare", 1)
    CrossEncoder(str(bare), device="cpu", activation_fn=activation).save_pretrained(str(tmp_path / "saved"))
    model = CrossEncoder(str(tmp_path / "saved"), device="cpu")
    want = model.predict(PAIRS)
    for engine in ENGINES:
        assert greatest(scores_of(tmp_path / "saved", engine)[:, 0] - want) <= FP32_MAX_ABS_DIFF
    assert card_of(tmp_path / "saved").task is Task.RERANK


def test_scores_of_several_labels_equal_sentence_transformers_where_its_files_name_the_function(
    tmp_path: Path,
) -> None:
    bare = folder_of(tmp_path / "bare", 3)
    CrossEncoder(str(bare), device="cpu", activation_fn=torch.nn.Sigmoid()).save_pretrained(
        str(tmp_path / "saved")
    )
    want = CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(PAIRS)
    for engine in ENGINES:
        assert greatest(scores_of(tmp_path / "saved", engine) - want) <= FP32_MAX_ABS_DIFF
    card = card_of(tmp_path / "saved")
    assert (card.task, head_of(tmp_path / "saved").labels) == (
        Task.CLASSIFY,
        ("label 0", "label 1", "label 2"),
    )


def head_of(folder: Path, **settings: object) -> ClassifierHead:
    head = card_of(folder, **settings).head
    assert isinstance(head, ClassifierHead)
    return head


SIGMOID = "torch.nn.modules.activation.Sigmoid"
IDENTITY = "torch.nn.modules.linear.Identity"
FUNCTIONS: dict[str, tuple[int, dict[str, Any], ScoreFunction]] = {
    "one label": (1, {}, ScoreFunction.SIGMOID),
    "one label, regression": (1, {"problem_type": "regression"}, ScoreFunction.SIGMOID),
    "several labels": (3, {}, ScoreFunction.SOFTMAX),
    "one of several": (3, {"problem_type": "single_label_classification"}, ScoreFunction.SOFTMAX),
    "several at once": (3, {"problem_type": "multi_label_classification"}, ScoreFunction.SIGMOID),
    "several numbers": (3, {"problem_type": "regression"}, ScoreFunction.IDENTITY),
    "named": (3, {"sentence_transformers": {"activation_fn": IDENTITY}}, ScoreFunction.IDENTITY),
    "named by an old version": (
        1,
        {"sbert_ce_default_activation_function": IDENTITY},
        ScoreFunction.IDENTITY,
    ),
    "the new name before the old one": (
        1,
        {
            "sbert_ce_default_activation_function": IDENTITY,
            "sentence_transformers": {"activation_fn": SIGMOID},
        },
        ScoreFunction.SIGMOID,
    ),
}


@pytest.mark.parametrize(("labels", "config", "want"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_the_function_of_the_scores_is_read_from_the_config(
    tmp_path: Path, labels: int, config: dict[str, Any], want: ScoreFunction
) -> None:
    folder_of(tmp_path, labels)
    edit(tmp_path / "config.json", **config)
    assert head_of(tmp_path).scores is want


def test_the_function_of_modules_stands_before_that_of_the_config(tmp_path: Path) -> None:
    folder_of(tmp_path, 1)
    edit(tmp_path / "config.json", sbert_ce_default_activation_function=SIGMOID)
    edit(tmp_path / "config_sentence_transformers.json", activation_fn=IDENTITY)
    assert head_of(tmp_path).scores is ScoreFunction.IDENTITY


def test_labels_are_in_the_order_of_the_logits_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    folder_of(tmp_path, 3)
    edit(tmp_path / "config.json", id2label={"2": "c", "0": "a", "1": "b"}, label2id={"c": 0, "b": 1, "a": 2})
    assert head_of(tmp_path).labels == ("a", "b", "c")


def change(**changes: object) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "config.json", **changes)


REFUSED: dict[str, tuple[Callable[[Path], None], dict[str, object], type[EmbedserveError], str]] = {
    "a label left out": (
        change(id2label={"0": "a", "2": "c"}),
        {},
        ModelInvalid,
        r"id2label must name every label from 0 on, has \[0, 2\]",
    ),
    "an unknown problem": (
        change(problem_type="ranking"),
        {},
        UnsupportedArchitecture,
        "problem_type = 'ranking'",
    ),
    "an unknown function": (
        change(sentence_transformers={"activation_fn": "torch.nn.modules.activation.Tanh"}),
        {},
        UnsupportedArchitecture,
        "the cross-encoder's activation torch.nn.modules.activation.Tanh is not supported; supported: torch",
    ),
    "an unknown head": (
        change(architectures=["BertForTokenClassification"]),
        {},
        UnsupportedArchitecture,
        "the head of BertForTokenClassification is not supported",
    ),
    "ranking by several labels": (
        change(),
        {"task": "rerank"},
        ConfigError,
        "model.task: rerank needs a model with one label, this one has 3",
    ),
    "classifying without a head": (
        change(architectures=["BertModel"]),
        {"task": "classify"},
        ConfigError,
        "model.task: classify needs a model for sequence classification, .* has BertModel",
    ),
    "words without a head for them": (
        change(),
        {"task": "sparse"},
        UnsupportedArchitecture,
        "BertForSequenceClassification has none that is supported",
    ),
    "a pooling of a classifier": (
        change(),
        {"pooling": "cls"},
        ConfigError,
        "model.pooling: is for dense vectors",
    ),
    "a cut of a classifier": (
        change(),
        {"dimensions": 2},
        ConfigError,
        "model.dimensions: is for dense vectors",
    ),
}


@pytest.mark.parametrize(
    ("damage", "settings", "want_error", "want_message"), REFUSED.values(), ids=REFUSED.keys()
)
def test_what_cannot_be_scored_is_refused_by_name(
    tmp_path: Path,
    damage: Callable[[Path], None],
    settings: dict[str, object],
    want_error: type[EmbedserveError],
    want_message: str,
) -> None:
    folder_of(tmp_path, 3)
    damage(tmp_path)
    with pytest.raises(want_error, match=want_message):
        card_of(tmp_path, **settings)


TASKS: dict[str, tuple[dict[str, object], bool, Task]] = {
    "a classifier without modules": ({}, False, Task.CLASSIFY),
    "its encoder alone": ({"task": "embed"}, False, Task.EMBED),
    "a classifier that was saved as an embedding model": ({}, True, Task.EMBED),
    "and is asked for as a classifier": ({"task": "classify"}, True, Task.CLASSIFY),
}


@pytest.mark.parametrize(("settings", "pools", "want"), TASKS.values(), ids=TASKS.keys())
def test_the_task_is_what_the_modules_say_then_what_the_class_says(
    tmp_path: Path, settings: dict[str, object], pools: bool, want: Task
) -> None:
    folder_of(tmp_path, 3)
    if pools:
        edit(tmp_path / "1_Pooling" / "config.json", pooling_mode="mean")
        modules = [
            {"idx": 0, "path": "", "type": "a.Transformer"},
            {"idx": 1, "path": "1_Pooling", "type": "a.Pooling"},
        ]
        (tmp_path / "modules.json").write_text(str(modules).replace("'", '"'))
    assert card_of(tmp_path, **settings).task is want
