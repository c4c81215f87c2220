"""Rerankers and classifiers of pairs, text in, scores out, against sentence-transformers' CrossEncoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from transformers import BertForSequenceClassification, BertModel, Qwen3ForSequenceClassification

from embedserve_runtime.errors import ConfigError, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.heads.classification import apply_score_function
from embedserve_runtime.model.heads.description import ClassifierHead, Task
from embedserve_runtime.model.heads.rerankers import QWEN3
from embedserve_runtime.tokenizing import TextTokenizer
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, greatest, logits_of, runner_of
from tests.runtime.heads.test_causal import CHAT_TEMPLATES, NEVER, call, save
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import CUT, TEXTS, bert
from tests.support.tolerances import FP32_MAX_ABS_DIFF

SHAPE = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_labels": 1}
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


def converted(folder: Path, template: str | None = None, **shape: Any) -> Path:
    """A decoder with a score for a text, as rerankers are converted to, without modules.json."""
    save(folder, Qwen3ForSequenceClassification, **SHAPE | shape)
    call(folder, "acme/base")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("saved", [False, True], ids=["of transformers", "of sentence-transformers"])
def test_a_converted_reranker_asks_by_its_chat_template(tmp_path: Path, saved: bool) -> None:
    folder = converted(tmp_path / "bare", CHAT_TEMPLATES["Qwen3-Reranker's"])
    model = CrossEncoder(str(folder), device="cpu")
    if saved:
        folder = tmp_path / "saved"
        model.save_pretrained(str(folder), create_model_card=False)
        model = CrossEncoder(str(folder), device="cpu")
    ask = "Find what answers."
    want, instructed = (model.predict(PAIRS, prompt=prompt) for prompt in (None, ask))
    for engine in ENGINES:
        assert greatest(scores_of(folder, engine)[:, 0] - want) <= FP32_MAX_ABS_DIFF
    tokenizer = TextTokenizer.from_card(card_of(folder))
    runner = runner_of(folder, "torch")
    ids = tokenizer.encode_pairs(PAIRS, CUT, prompt=ask)
    got = apply_score_function(logits_of(runner, ids), head_of(folder).scores).astype(np.float32)
    assert greatest(got[:, 0] - instructed) <= FP32_MAX_ABS_DIFF


def test_a_converted_reranker_without_a_template_of_its_own_asks_as_the_one_that_it_was_made_from(
    tmp_path: Path,
) -> None:
    folder = converted(tmp_path, NEVER)
    call(folder, "Qwen/Qwen3-Reranker-0.6B")
    assert head_of(folder).template == QWEN3.template


def test_a_reranker_whose_chat_template_takes_no_pair_is_refused_as_by_sentence_transformers(
    tmp_path: Path,
) -> None:
    folder = converted(tmp_path, NEVER)
    with pytest.raises(ValueError, match="cannot carry a 'query'/'document' pair"):
        CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    with pytest.raises(
        UnsupportedArchitecture, match=r"chat_template.jinja: chat_template has no roles query"
    ):
        card_of(folder)


def test_pairs_are_joined_bare_where_sentence_transformers_joins_them(tmp_path: Path) -> None:
    no_template = converted(tmp_path / "no template")
    assert head_of(no_template).template is None
    several_labels = converted(tmp_path / "several labels", NEVER, num_labels=3)
    assert head_of(several_labels).template is None
    CrossEncoder(str(converted(tmp_path / "bare", CHAT_TEMPLATES["Qwen3-Reranker's"]))).save_pretrained(
        str(tmp_path / "saved"), create_model_card=False
    )
    # As versions before 5.4 saved it, which put nothing into chat templates.
    edit(tmp_path / "saved" / "sentence_bert_config.json", modality_config=None, module_output_name=None)
    assert head_of(tmp_path / "saved").template is None


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_scores_of_a_chain_of_modules_equal_sentence_transformers(tmp_path: Path, pooling: str) -> None:
    bare = bert(tmp_path / "bare", BertModel)
    torch.manual_seed(3)
    norm = LayerNorm(12)
    torch.nn.init.normal_(norm.norm.weight)
    torch.nn.init.normal_(norm.norm.bias)
    modules = [
        Transformer(str(bare)),
        Pooling(24, pooling_mode=pooling),
        Dense(24, 12, activation_function=torch.nn.GELU()),
        norm,
        Dense(12, 1, activation_function=torch.nn.Identity(), module_output_name="scores"),
    ]
    CrossEncoder(modules=modules, device="cpu", activation_fn=torch.nn.Identity()).save_pretrained(
        str(tmp_path / "saved"), create_model_card=False
    )
    want = CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(PAIRS)
    for engine in ENGINES:
        assert greatest(scores_of(tmp_path / "saved", engine)[:, 0] - want) <= FP32_MAX_ABS_DIFF
    assert card_of(tmp_path / "saved").task is Task.RERANK
    with pytest.raises(ConfigError, match="its modules make scores"):
        card_of(tmp_path / "saved", task="embed")


@pytest.mark.parametrize("settings", [{"pooling": "cls"}, {"dimensions": 2}], ids=["pooling", "dimensions"])
def test_settings_for_dense_vectors_are_refused(tmp_path: Path, settings: dict[str, object]) -> None:
    folder_of(tmp_path, 3)
    with pytest.raises(ConfigError, match=f"model.{next(iter(settings))}: is for dense vectors"):
        card_of(tmp_path, **settings)
