"""Sparse vectors of a trained masked-LM, from text to weights, against sentence-transformers' SparseEncoder."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import SparseEncoder

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.support.models import splade_folder
from tests.support.texts import parity_texts
from tests.support.tolerances import FP32_MAX_ABS_DIFF

pytestmark = pytest.mark.thorough
TEXTS = parity_texts(40)


def test_weights_of_a_real_model_equal_those_of_sentence_transformers() -> None:
    config = RuntimeConfig.model_validate({"model": {"source": str(splade_folder()), "task": "sparse"}})
    runner = load_runner(config)
    assert runner.card.task is Task.SPARSE
    ids = TextTokenizer.from_card(runner.card).encode(TEXTS, prompt="", rules=TruncationRules(truncate=True))
    vectors = runner.run(PackedBatch.pack(ids), OutputKind.SPARSE).sparse
    assert vectors is not None
    got = np.zeros((len(TEXTS), runner.card.pipeline.dimensions), dtype=np.float32)
    for row, vector in zip(got, vectors, strict=True):
        row[vector.indices] = vector.values
    oracle = SparseEncoder(str(splade_folder()), device="cpu")
    oracle.max_seq_length = runner.card.max_length
    want = oracle.encode(TEXTS, batch_size=8, convert_to_sparse_tensor=False).numpy()
    assert np.abs(got - want).max() <= FP32_MAX_ABS_DIFF
    assert (got > 0).sum(axis=1).max() > 10
