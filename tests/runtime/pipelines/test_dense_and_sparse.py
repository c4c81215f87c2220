"""Masked-LM models that give dense and sparse vectors of one forward, against sentence-transformers' two classes."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from sentence_transformers.sparse_encoder.modules import SpladePooling
from transformers import BertForMaskedLM, BertModel

from embedserve_runtime.errors import ConfigError
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.model.heads.description import SparseHead, SparsePooling, Task
from embedserve_runtime.model.pipeline import Pooling
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, greatest, runner_of
from tests.runtime.pipelines.folders import TEXTS, bert, finished, tokens_of, write_modules
from tests.runtime.pipelines.test_sparse_pipelines import rows, saved
from tests.support.tolerances import FP32_MAX_ABS_DIFF

BOTH = ("dense", "sparse")


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked LM whose folder says how dense vectors are pooled."""
    folder = bert(tmp_path_factory.mktemp("masked"), BertForMaskedLM)
    write_modules(folder, pooling_mode="cls")
    return folder


@pytest.fixture(scope="module")
def splade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked LM whose folder says how sparse vectors are pooled: by sums."""
    folder = tmp_path_factory.mktemp("splade")
    saved(bert(tmp_path_factory.mktemp("bare"), BertForMaskedLM), folder, pooling_strategy="sum")
    return folder


def dense_of_sentence_transformers(folder: Path, pooling: str) -> FloatArray:
    modules = [Transformer(str(folder)), PoolingModule(24, pooling_mode=pooling)]
    vectors: FloatArray = SentenceTransformer(modules=modules, device="cpu").encode(TEXTS)
    return vectors


def sparse_of_sentence_transformers(folder: Path, strategy: str) -> FloatArray:
    modules = [Transformer(str(folder), transformer_task="fill-mask"), SpladePooling(strategy)]
    encoder = SparseEncoder(modules=modules, device="cpu")
    vectors: FloatArray = encoder.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    return vectors


CASES = {
    "pooled as the folder says": ("masked", {}, "cls", "max"),
    "and the task is said": ("masked", {"task": "sparse"}, "cls", "max"),
    "pooled as the service says": ("masked", {"pooling": "mean"}, "mean", "max"),
    "sparse vectors as the folder says": ("splade", {"pooling": "mean"}, "mean", "sum"),
}


@pytest.mark.parametrize(("folder", "settings", "pooling", "strategy"), CASES.values(), ids=CASES)
def test_both_equal_sentence_transformers_on_every_engine(
    folder: str,
    settings: dict[str, str],
    pooling: str,
    strategy: str,
    request: pytest.FixtureRequest,
) -> None:
    path: Path = request.getfixturevalue(folder)
    want_dense = dense_of_sentence_transformers(path, pooling)
    want_sparse = sparse_of_sentence_transformers(path, strategy)
    for engine in ENGINES:
        runner = runner_of(path, engine, outputs=BOTH, **settings)
        outputs = runner.run(
            PackedBatch.pack(tokens_of(runner.card, TEXTS)), OutputKind.DENSE | OutputKind.SPARSE
        )
        assert outputs.dense is not None
        assert outputs.sparse is not None
        assert greatest(finished(runner.card, outputs.dense) - want_dense) <= FP32_MAX_ABS_DIFF
        assert greatest(rows([*outputs.sparse], want_sparse.shape[1]) - want_sparse) <= FP32_MAX_ABS_DIFF
    assert (runner.card.task, runner.card.sparse_width) == (Task.EMBED, want_sparse.shape[1])


def test_sparse_vectors_come_beside_dense_ones_only_where_they_are_asked_for(masked: Path) -> None:
    plain, with_sparse = card_of(masked), card_of(masked, outputs=["sparse"])
    assert (plain.output_names, with_sparse.output_names) == (
        ["dense", "hidden"],
        ["dense", "sparse", "hidden"],
    )
    assert plain.vector_space != with_sparse.vector_space


def test_without_modules_the_dense_vector_is_that_of_sentence_transformers(tmp_path: Path) -> None:
    card = card_of(bert(tmp_path, BertForMaskedLM), outputs=BOTH)
    assert (card.pipeline.pooling, card.pipeline.normalize) == ((Pooling.MEAN,), False)
    (head,) = card.token_heads
    assert isinstance(head, SparseHead)
    assert head.pooling is SparsePooling.MAX


def test_a_folder_that_says_nothing_of_dense_vectors_asks_for_their_pooling(splade: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.pooling: .* say only how sparse ones are pooled"):
        card_of(splade, outputs=BOTH)
    with pytest.raises(ConfigError, match=r"model\.pooling: .* say only how sparse ones are pooled"):
        card_of(splade, task="embed")


def test_sparse_vectors_of_a_model_without_weights_for_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.outputs: sparse not available"):
        card_of(bert(tmp_path, BertModel), outputs=BOTH)
