"""Token weights beside dense vectors, of every family on every engine, against transformers' token classifiers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from embedserve_runtime.errors import ConfigError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind, SparseVector
from embedserve_runtime.model.heads.description import LexicalHead, Task
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.runners.base import Runner
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_cases import (
    DECODER,
    SHAPE,
    TOKEN_CLASSIFIERS,
    HeadCase,
    change_config,
    token_classifier,
)
from tests.runtime.heads.head_runner import card_of, runner_of, sequences
from tests.runtime.pipelines.folders import write_modules
from tests.support.tiny_tokenizers import xlm_roberta_tokenizer
from tests.support.tolerances import FP32_MAX_ABS_DIFF, NEIGHBOUR_MAX_ABS_DIFF

SPECIAL_IDS = (0, 1, 2, 3)
BERT = token_classifier("Bert", SHAPE, "odd heads")


def build(case: HeadCase, folder: Path, **changes: object) -> None:
    case.build(folder, **changes)
    xlm_roberta_tokenizer(folder)


def move_logits(folder: Path, by: float) -> None:
    """Add a number to the bias of the head."""
    tensors = load_file(folder / "model.safetensors")
    (name,) = tensors.keys() & {"classifier.bias", "score.bias"}
    save_file(tensors | {name: tensors[name] + by}, folder / "model.safetensors", {"format": "pt"})


def weights_of(ids: Int32Array, logits: FloatArray) -> Mapping[int, float]:
    """The largest max(0, logit) of each token id, without special tokens."""
    weights: dict[int, float] = {}
    for token, weight in zip(ids.tolist(), np.maximum(logits[:, 0], 0).tolist(), strict=True):
        if token not in SPECIAL_IDS and weight > weights.get(token, 0):
            weights[token] = weight
    return weights


def sparse_of(runner: Runner, texts: Sequence[Int32Array]) -> Sequence[SparseVector]:
    sparse = runner.run(PackedBatch.pack(texts), OutputKind.DENSE | OutputKind.SPARSE).sparse
    assert sparse is not None
    return sparse


@pytest.mark.parametrize("case", TOKEN_CLASSIFIERS, ids=lambda case: case.name)
def test_weights_equal_those_of_transformers_on_every_engine_whatever_else_is_in_the_batch(
    tmp_path: Path, case: HeadCase
) -> None:
    logits, texts = case.build(tmp_path), sequences()
    xlm_roberta_tokenizer(tmp_path)
    rows = [logits(ids) for ids in texts]
    median = float(np.median(np.concatenate(rows)))  # half of the weights above 0
    move_logits(tmp_path, -median)
    want = [weights_of(ids, row - median) for ids, row in zip(texts, rows, strict=True)]
    for engine in ENGINES:
        runner = runner_of(tmp_path, engine, pooling="mean")
        assert runner.card.outputs == OutputKind.DENSE | OutputKind.SPARSE | OutputKind.HIDDEN
        for ids, vector, weights in zip(texts, sparse_of(runner, texts), want, strict=True):
            assert vector.indices.tolist() == sorted(weights)
            want_values = np.array([weights[token] for token in sorted(weights)], dtype=np.float32)
            np.testing.assert_allclose(vector.values, want_values, atol=FP32_MAX_ABS_DIFF)
            (alone,) = sparse_of(runner, [ids])
            np.testing.assert_allclose(alone.values, vector.values, atol=NEIGHBOUR_MAX_ABS_DIFF)


def test_without_modules_the_dense_vector_is_the_first_tokens_normalised(tmp_path: Path) -> None:
    build(BERT, tmp_path)
    card = card_of(tmp_path)
    assert (card.task, card.pipeline.pooling, card.pipeline.normalize) == (Task.EMBED, (Pooling.CLS,), True)
    assert card_of(tmp_path, pooling="mean").pipeline.pooling == (Pooling.MEAN,)


def test_modules_say_the_dense_vector_where_they_are_written(tmp_path: Path) -> None:
    build(BERT, tmp_path)
    write_modules(tmp_path, pooling_mode="mean")
    card = card_of(tmp_path)
    assert (card.pipeline.pooling, card.pipeline.normalize) == ((Pooling.MEAN,), False)
    assert card.output_names == ["dense", "sparse", "hidden"]


def test_a_causal_model_must_be_told_how_to_pool(tmp_path: Path) -> None:
    build(token_classifier("Llama", DECODER, "grouped heads"), tmp_path)
    with pytest.raises(UnsupportedArchitecture, match=r"of a causal decoder.*set .*model\.pooling"):
        card_of(tmp_path)
    assert card_of(tmp_path, pooling="last").output_names == ["dense", "sparse", "hidden"]


def test_other_weights_of_the_head_give_another_identity(tmp_path: Path) -> None:
    build(BERT, tmp_path)
    before = card_of(tmp_path).vector_space
    move_logits(tmp_path, 1)
    assert card_of(tmp_path).vector_space != before


def test_a_decoder_whose_class_has_no_bias_has_none(tmp_path: Path) -> None:
    build(token_classifier("Llama", DECODER, "grouped heads"), tmp_path)
    change_config(tmp_path, token_classification_bias=False)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["score.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    (head,) = card_of(tmp_path, pooling="last").token_heads
    assert isinstance(head, LexicalHead)
    assert head.layers[0].bias == ()


def test_the_checkpoint_counts_the_labels_where_the_configuration_does_not(tmp_path: Path) -> None:
    build(BERT, tmp_path)
    change_config(tmp_path, id2label=None, label2id=None)
    assert "sparse" in card_of(tmp_path).output_names


def test_a_head_that_is_not_in_the_checkpoint_is_named(tmp_path: Path) -> None:
    build(BERT, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["classifier.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelInvalid, match=r"lacks a tensor of its head: classifier\.bias"):
        card_of(tmp_path)


def test_several_labels_are_refused_unless_the_encoder_alone_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(BERT, tmp_path, num_labels=3)
    with pytest.raises(
        UnsupportedArchitecture, match=r"BertForTokenClassification.*3 labels.*model\.task to embed"
    ):
        card_of(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert card_of(tmp_path, task="embed").output_names == ["dense", "hidden"]
    assert "served without its head" in caplog.text


def test_token_weights_are_not_a_task_of_their_own(tmp_path: Path) -> None:
    build(BERT, tmp_path)
    with pytest.raises(
        ConfigError, match=r"model\.task: sparse is for models that give sparse vectors alone"
    ):
        card_of(tmp_path, task="sparse")
    assert card_of(tmp_path, outputs=("dense", "sparse")).output_names == ["dense", "sparse", "hidden"]
