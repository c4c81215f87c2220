"""Sparse vectors of every family on every engine against transformers, with SpladePooling of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers.sparse_encoder.modules import SpladePooling

from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind, SparseVector
from embedserve_runtime.heads import sparse
from embedserve_runtime.heads.layers import HeadLayerWeights
from embedserve_runtime.model.heads.config import describe_layer
from embedserve_runtime.model.heads.description import SparseHead, SparsePooling, Task
from embedserve_runtime.runners.base import Runner
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_cases import MASKED_LMS, VOCABULARY, HeadCase
from tests.runtime.heads.head_runner import greatest, runner_of, sequences
from tests.support.tolerances import FP32_MAX_ABS_DIFF, NEIGHBOUR_MAX_ABS_DIFF

HIDDEN = 6
LENGTHS = (3, 1, 30, 2, 11)
BOUNDS = np.cumsum((0, *LENGTHS), dtype=np.int32)


def packed() -> PackedBatch:
    return PackedBatch(np.zeros(BOUNDS[-1], dtype=np.int32), BOUNDS)


def sparse_of(runner: Runner, texts: list[Int32Array]) -> Sequence[SparseVector]:
    vectors = runner.run(PackedBatch.pack(texts), OutputKind.SPARSE).sparse
    assert vectors is not None
    return vectors


def with_zeros(vectors: Sequence[SparseVector], width: int) -> FloatArray:
    rows = np.zeros((len(vectors), width), dtype=np.float32)
    for row, vector in zip(rows, vectors, strict=True):
        row[vector.indices] = vector.values
    return rows


@pytest.mark.parametrize("case", MASKED_LMS, ids=lambda case: case.name)
def test_sparse_vectors_equal_those_of_transformers_on_every_engine_whatever_else_is_in_the_batch(
    tmp_path: Path, case: HeadCase
) -> None:
    logits, texts, pooling = case.build(tmp_path), sequences(), SpladePooling().eval()
    rows = [torch.from_numpy(logits(ids))[None] for ids in texts]
    features = [{"token_embeddings": row, "attention_mask": torch.ones(row.shape[:2])} for row in rows]
    want = np.concatenate([pooling(feature)["sentence_embedding"] for feature in features])
    for engine in ENGINES:
        runner = runner_of(tmp_path, engine, task="sparse")
        got = with_zeros(sparse_of(runner, texts), VOCABULARY)
        assert greatest(got - want) <= FP32_MAX_ABS_DIFF
        alone = [vector for ids in texts for vector in sparse_of(runner, [ids])]
        assert greatest(got - with_zeros(alone, VOCABULARY)) <= NEIGHBOUR_MAX_ABS_DIFF
        assert (runner.card.task, runner.card.pipeline.dimensions) == (Task.SPARSE, VOCABULARY)


def made_up_head(
    pooling: SparsePooling, *, log_twice: bool = False
) -> tuple[SparseHead, list[HeadLayerWeights]]:
    source = np.random.default_rng(3)
    head = SparseHead((describe_layer(HIDDEN, VOCABULARY, "decoder"),), pooling, log_twice)
    weight = source.normal(size=(VOCABULARY, HIDDEN)).astype(np.float32)
    bias = source.normal(size=VOCABULARY).astype(np.float32)
    return head, [HeadLayerWeights(head.layers[0], weight, bias, None, None)]


def made_up_states() -> FloatArray:
    return np.random.default_rng(4).normal(size=(int(BOUNDS[-1]), HIDDEN)).astype(np.float32)


@pytest.mark.parametrize("tile", [1, 4, 7, 1000], ids=lambda tile: f"tiles of {tile} tokens")
@pytest.mark.parametrize("pooling", SparsePooling)
@pytest.mark.parametrize("log_twice", [False, True])
def test_pooling_equals_sentence_transformers_whatever_the_tiles(
    monkeypatch: pytest.MonkeyPatch, tile: int, pooling: SparsePooling, log_twice: bool
) -> None:
    monkeypatch.setattr(sparse, "MAX_TILE_BYTES", tile * VOCABULARY * 4)
    head, layers = made_up_head(pooling, log_twice=log_twice)
    hidden = made_up_states()
    reference = SpladePooling(pooling.value, "log1p_relu" if log_twice else "relu").eval()
    logits = layers[0](hidden)
    features = {"token_embeddings": torch.from_numpy(logits)[None], "cu_seq_lens_q": torch.from_numpy(BOUNDS)}
    want = reference(features)["sentence_embedding"].numpy()
    got = sparse.LoadedSparseHead(head, layers)(hidden, packed())
    np.testing.assert_allclose(with_zeros(got, VOCABULARY), want, atol=1e-5)
    for vector in got:
        assert (np.diff(vector.indices) > 0).all()
        assert (vector.values > 0).all()


def test_logits_are_never_held_for_more_tokens_than_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    tile_sizes: list[int] = []

    def run(layers: list[HeadLayerWeights], values: FloatArray) -> FloatArray:
        tile_sizes.append(len(values))
        return layers[0](values)

    monkeypatch.setattr(sparse, "MAX_TILE_BYTES", 5 * VOCABULARY * 4)
    monkeypatch.setattr(sparse, "apply_layers", run)
    sparse.LoadedSparseHead(*made_up_head(SparsePooling.MAX))(made_up_states(), packed())
    assert (sum(tile_sizes), max(tile_sizes)) == (sum(LENGTHS), 5)


def test_top_k_and_threshold_keep_the_largest_entries_in_the_order_of_their_indices() -> None:
    first = sparse.to_sparse_vector(np.array([0, 3, 1, 3, 0.5, 2], dtype=np.float32))
    assert first.indices.tolist() == [1, 2, 3, 4, 5]
    three = sparse.prune(first, top_k=3)
    assert (three.indices.tolist(), three.values.tolist()) == ([1, 3, 5], [3, 3, 2])
    assert sparse.prune(first, top_k=1).indices.tolist() == [1]
    assert sparse.prune(first, threshold=0.5).indices.tolist() == [1, 2, 3, 5]
    none = sparse.prune(first, threshold=3)
    assert not len(none.indices)
    assert (none.indices.dtype.name, none.values.dtype.name) == ("int32", "float32")


def test_what_is_not_a_number_is_kept_for_the_service_to_refuse() -> None:
    vector = sparse.to_sparse_vector(np.array([0, np.nan, 1], dtype=np.float32))
    assert vector.indices.tolist() == [1, 2]
