"""BGE-M3's three outputs of one forward, on every engine, against the formulas of FlagEmbedding 1.4.2 in torch.

FlagEmbedding itself does not import beside transformers 5: `tests/oracles` runs it in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.model.pipeline import Pooling
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, greatest, runner_of
from tests.runtime.pipelines.folders import write_modules
from tests.support.models import tiny
from tests.support.tiny_tokenizers import WORDS, xlm_roberta_tokenizer
from tests.support.tolerances import FP32_MAX_ABS_DIFF, NEIGHBOUR_MAX_ABS_DIFF

ALL = OutputKind.DENSE | OutputKind.SPARSE | OutputKind.MULTI_VECTOR
# Repeated words, an unknown one, a single one, a text of 40 tokens.
TEXTS = ("ba de ba ba fi", "xyz", "ku", " ".join(WORDS[:38]), "pai xyz pai nou <mask>")
# Layers, heads, columns of the token vectors (None: as many as the hidden states have), dtype of the files.
SHAPES = {
    "as wide as the hidden states": (2, 3, 36, torch.float32),
    "narrower, 16 bit": (1, 9, 10, torch.bfloat16),
    "wider, half": (3, 1, 50, torch.float16),
}


@dataclass(frozen=True)
class M3:
    """A folder as FlagEmbedding saves it, and its formulas."""

    folder: Path
    encoder: PreTrainedModel
    sparse: torch.nn.Linear
    colbert: torch.nn.Linear
    tokenizer: PreTrainedTokenizerFast

    @classmethod
    def save(cls, folder: Path, layers: int, heads: int, columns: int, dtype: torch.dtype) -> M3:
        config = XLMRobertaConfig(
            vocab_size=75,
            hidden_size=36,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=50,
            max_position_embeddings=42,
            type_vocab_size=1,
        )
        encoder = tiny(folder, XLMRobertaModel, config)
        tokenizer = xlm_roberta_tokenizer(folder)
        sparse, colbert = torch.nn.Linear(36, 1), torch.nn.Linear(36, columns).to(dtype)
        with torch.no_grad():  # half of the weights above 0
            ids = torch.tensor([tokenizer(TEXTS[3])["input_ids"]])
            weights = sparse(encoder(ids).last_hidden_state)
            sparse.bias.sub_(weights.quantile(0.5, interpolation="midpoint"))
        sparse = sparse.to(dtype)
        torch.save(sparse.state_dict(), folder / "sparse_linear.pt")
        torch.save(colbert.state_dict(), folder / "colbert_linear.pt")
        return cls(folder, encoder, sparse.float(), colbert.float(), tokenizer)

    def ids(self, text: str) -> Int32Array:
        return np.array(self.tokenizer(text)["input_ids"], dtype=np.int32)

    def reference(self, ids: Int32Array) -> tuple[FloatArray, dict[int, float], FloatArray]:
        """The dense vector, the lexical weights by token id, the token vectors."""
        tokenizer = self.tokenizer
        unused = {
            tokenizer.cls_token_id,
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
            tokenizer.unk_token_id,
        }
        with torch.no_grad():
            hidden = self.encoder(torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0]
            dense = torch.nn.functional.normalize(hidden[0], dim=-1)
            weights: dict[int, float] = {}
            for token, weight in zip(
                ids.tolist(), torch.relu(self.sparse(hidden))[:, 0].tolist(), strict=True
            ):
                if token not in unused and weight > weights.get(token, 0):
                    weights[token] = weight
            vectors = torch.nn.functional.normalize(self.colbert(hidden[1:]), dim=-1)
        return dense.numpy(), weights, vectors.numpy()


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> M3:
    return M3.save(tmp_path, *request.param)


def compare(got: ModelOutput, model: M3, texts: Sequence[Int32Array]) -> None:
    assert got.dense is not None
    assert got.sparse is not None
    assert got.multi_vectors is not None
    assert 10 < sum(len(vector.indices) for vector in got.sparse) < sum(map(len, texts)) - 10
    for number, ids in enumerate(texts):
        dense, weights, vectors = model.reference(ids)
        assert greatest(normalize(got.dense[number : number + 1])[0] - dense) <= FP32_MAX_ABS_DIFF
        sparse = got.sparse[number]
        assert sparse.indices.tolist() == sorted(weights)
        want = np.array([weights[index] for index in sorted(weights)], dtype=np.float32)
        np.testing.assert_allclose(sparse.values, want, atol=FP32_MAX_ABS_DIFF)
        assert got.multi_vectors[number].shape == vectors.shape == (len(ids) - 1, model.colbert.out_features)
        assert greatest(got.multi_vectors[number] - vectors) <= FP32_MAX_ABS_DIFF


def test_all_three_outputs_of_one_forward_equal_flag_embedding_on_every_engine(model: M3) -> None:
    texts = [model.ids(text) for text in TEXTS]
    for engine in ENGINES:
        runner = runner_of(model.folder, engine)
        assert runner.card.outputs == ALL | OutputKind.HIDDEN
        assert (runner.card.pipeline.pooling, runner.card.pipeline.normalize) == ((Pooling.CLS,), True)
        got = runner.run(PackedBatch.pack(texts), ALL)
        compare(got, model, texts)
        assert got.sparse is not None
        for number, ids in enumerate(texts):
            alone = runner.run(PackedBatch.pack([ids]), ALL).sparse
            assert alone is not None
            np.testing.assert_allclose(
                alone[0].values, got.sparse[number].values, atol=NEIGHBOUR_MAX_ABS_DIFF
            )


@pytest.fixture
def first(tmp_path: Path) -> M3:
    return M3.save(tmp_path, 1, 3, 36, torch.float32)


def test_only_what_is_asked_for_is_made(first: M3) -> None:
    runner = runner_of(first.folder, "torch")
    got = runner.run(PackedBatch.pack([first.ids("ba")]), OutputKind.SPARSE)
    assert (got.dense, got.multi_vectors, got.hidden) == (None, None, None)
    assert got.sparse is not None


def test_special_tokens_are_dropped_from_the_weights_also_where_the_tokenizers_own_file_is_silent(
    first: M3,
) -> None:
    head = card_of(first.folder).token_heads[0]
    (first.folder / "tokenizer_config.json").unlink()
    assert card_of(first.folder).token_heads[0] == head
    assert getattr(head, "dropped", None) == (0, 1, 2, 3)


def test_modules_say_the_dense_vector_where_they_are_written(first: M3) -> None:
    write_modules(first.folder, pooling_mode="mean")
    card = card_of(first.folder)
    assert (card.pipeline.pooling, card.pipeline.normalize) == ((Pooling.MEAN,), False)
    assert card.outputs == ALL | OutputKind.HIDDEN


def test_a_file_alone_gives_its_output_alone(first: M3) -> None:
    before = card_of(first.folder)
    (first.folder / "colbert_linear.pt").unlink()
    card = card_of(first.folder)
    assert card.outputs == OutputKind.DENSE | OutputKind.HIDDEN | OutputKind.SPARSE
    assert card.vector_space != before.vector_space


def test_other_weights_of_a_head_give_another_identity(first: M3) -> None:
    before = card_of(first.folder).vector_space
    torch.save(torch.nn.Linear(36, 1).state_dict(), first.folder / "sparse_linear.pt")
    assert card_of(first.folder).vector_space != before


@pytest.mark.parametrize(
    ("file", "layer", "want_message"),
    [
        ("sparse_linear.pt", torch.nn.Linear(36, 2), "sparse_linear.pt: gives 2 weights a token, expected 1"),
        ("colbert_linear.pt", torch.nn.Linear(35, 4), r"weight has shape \[4, 35\], the encoder gives 36"),
        ("colbert_linear.pt", torch.nn.Linear(36, 4, bias=False), "has weight, expected weight and bias"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(
    first: M3, file: str, layer: torch.nn.Module, want_message: str
) -> None:
    torch.save(layer.state_dict(), first.folder / file)
    with pytest.raises(ModelInvalid, match=want_message):
        card_of(first.folder)
