"""Sparse models as sentence-transformers saves them, text in, weights out, against its SparseEncoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling
from transformers import BertForMaskedLM

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind, SparseVector
from embedserve_runtime.heads.sparse import prune
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, greatest, runner_of
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import CUT, TEXTS, bert
from tests.support.tolerances import FP32_MAX_ABS_DIFF

POOLINGS: dict[str, dict[str, Any]] = {
    "max": {"pooling_strategy": "max"},
    "sum": {"pooling_strategy": "sum"},
    "max, two logarithms": {"pooling_strategy": "max", "activation_function": "log1p_relu"},
    "sum, two logarithms": {"pooling_strategy": "sum", "activation_function": "log1p_relu"},
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("bert"), BertForMaskedLM)


def saved(bare: Path, folder: Path, **pooling: Any) -> SparseEncoder:
    modules = [Transformer(str(bare), transformer_task="fill-mask"), SpladePooling(**pooling)]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return SparseEncoder(str(folder), device="cpu")


def vectors(runner: Runner) -> list[SparseVector]:
    ids = TextTokenizer.from_card(runner.card).encode(TEXTS, "", CUT)
    rows_of_batch = runner.run(PackedBatch.pack(ids), OutputKind.SPARSE).sparse
    assert rows_of_batch is not None
    return list(rows_of_batch)


def rows(vectors_of_batch: list[SparseVector], width: int) -> FloatArray:
    dense = np.zeros((len(vectors_of_batch), width), dtype=np.float32)
    for row, vector in zip(dense, vectors_of_batch, strict=True):
        row[vector.indices] = vector.values
    return dense


@pytest.mark.parametrize("pooling", POOLINGS.values(), ids=POOLINGS.keys())
def test_weights_equal_sentence_transformers_without_a_flag(
    bare: Path, tmp_path: Path, pooling: dict[str, Any]
) -> None:
    want = saved(bare, tmp_path, **pooling).encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    for engine in ENGINES:
        runner = runner_of(tmp_path, engine)
        assert runner.card.task is Task.SPARSE
        assert greatest(rows(vectors(runner), want.shape[1]) - want) <= FP32_MAX_ABS_DIFF


def test_the_largest_entries_are_those_of_sentence_transformers(bare: Path, tmp_path: Path) -> None:
    model = saved(bare, tmp_path)
    want = model.encode(TEXTS, convert_to_sparse_tensor=False, max_active_dims=16).numpy()
    runner = runner_of(tmp_path, "torch")
    pruned = [prune(vector, top_k=16) for vector in vectors(runner)]
    assert greatest(rows(pruned, want.shape[1]) - want) <= FP32_MAX_ABS_DIFF


def test_an_old_spelling_of_the_encoder_module_is_read(bare: Path, tmp_path: Path) -> None:
    saved(bare, tmp_path)
    before = card_of(tmp_path)
    modules = (tmp_path / "modules.json").read_text()
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    assert kind in modules
    (tmp_path / "modules.json").write_text(
        modules.replace(kind, "sentence_transformers.sparse_encoder.models.MLMTransformer.MLMTransformer")
    )
    assert card_of(tmp_path).head == before.head


@pytest.mark.parametrize(
    ("changes", "want_message"),
    [
        ({"pooling_strategy": "mean"}, "1_SpladePooling/config.json: pooling_strategy: Input should be"),
        ({"activation_function": "gelu"}, "1_SpladePooling/config.json: activation_function: Input should"),
    ],
)
def test_an_unknown_pooling_or_activation_is_refused_by_name(
    bare: Path, tmp_path: Path, changes: dict[str, Any], want_message: str
) -> None:
    saved(bare, tmp_path)
    edit(tmp_path / "1_SpladePooling" / "config.json", **changes)
    with pytest.raises(ModelInvalid, match=want_message):
        card_of(tmp_path)


def test_an_encoder_without_a_head_for_words_is_refused_by_name(bare: Path, tmp_path: Path) -> None:
    saved(bare, tmp_path)
    edit(tmp_path / "config.json", architectures=["BertModel"])
    with pytest.raises(UnsupportedArchitecture, match="BertModel has none that is supported"):
        card_of(tmp_path)
