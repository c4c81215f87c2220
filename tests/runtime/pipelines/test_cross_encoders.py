"""Rerankers and classifiers of pairs, text in, scores out, against sentence-transformers' CrossEncoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import BertForSequenceClassification

from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.heads.classification import apply_score_function
from embedserve_runtime.model.heads.description import ClassifierHead, Task
from embedserve_runtime.tokenizing import TextTokenizer
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, greatest, logits_of, runner_of
from tests.runtime.pipelines.folders import CUT, TEXTS, bert
from tests.support.tolerances import FP32_MAX_ABS_DIFF

PAIRS = [("a query", text) for text in TEXTS]


def folder_of(folder: Path, labels: int, **settings: Any) -> Path:
    names = {number: f"label {number}" for number in range(labels)}
    return bert(folder, BertForSequenceClassification, num_labels=labels, id2label=names, **settings)


def scores_of(folder: Path, engine: str) -> FloatArray:
    runner = runner_of(folder, engine)
    head = runner.card.head
    assert isinstance(head, ClassifierHead)
    ids = TextTokenizer.from_card(runner.card).encode_pairs(PAIRS, CUT)
    return apply_score_function(logits_of(runner, ids), head.scores).astype(np.float32)


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
    CrossEncoder(str(bare), device="cpu", activation_fn=activation).save_pretrained(
        str(tmp_path / "saved"), create_model_card=False
    )
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
        str(tmp_path / "saved"), create_model_card=False
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


@pytest.mark.parametrize("settings", [{"pooling": "cls"}, {"dimensions": 2}], ids=["pooling", "dimensions"])
def test_settings_for_dense_vectors_are_refused(tmp_path: Path, settings: dict[str, object]) -> None:
    folder_of(tmp_path, 3)
    with pytest.raises(ConfigError, match=f"model.{next(iter(settings))}: is for dense vectors"):
        card_of(tmp_path, **settings)
