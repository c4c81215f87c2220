"""Asymmetric sparse models against sentence-transformers: queries by a table of weights, documents by an encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from tokenizers import Tokenizer
from transformers import BertForMaskedLM

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.errors import EmbedserveError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.batch import PackedBatch, Tokens, TokenSequence
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.tokenizing import TextTokenizer
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.head_runner import card_of, greatest, runner_of
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import CUT, TEXTS, bert, tokens_of
from tests.runtime.pipelines.test_sparse_pipelines import rows
from tests.support.tokenizers import CUT_VOCABULARY
from tests.support.tolerances import FP32_MAX_ABS_DIFF

TABLE = "query_0_SparseStaticEmbedding"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("bert"), BertForMaskedLM)


def saved(bare: Path, folder: Path, **settings: Any) -> SparseEncoder:
    encoder = Transformer(str(bare), transformer_task="fill-mask")
    torch.manual_seed(2)
    weights = torch.rand(len(encoder.tokenizer.get_vocab())) * (
        torch.rand(len(encoder.tokenizer.get_vocab())) > 0.3
    )
    router = Router.for_query_document(
        [SparseStaticEmbedding(encoder.tokenizer, weights)],
        [encoder, SpladePooling(activation_function="log1p_relu")],
        **settings,
    )
    SparseEncoder(modules=[router], device="cpu").save_pretrained(str(folder), create_model_card=False)
    return SparseEncoder(str(folder), device="cpu")


def test_queries_and_documents_of_one_batch_equal_sentence_transformers(bare: Path, tmp_path: Path) -> None:
    model = saved(bare, tmp_path)
    documents = model.encode_document(TEXTS, convert_to_sparse_tensor=False).numpy()
    queries = model.encode_query(TEXTS, convert_to_sparse_tensor=False).numpy()
    plain = Tokenizer.from_file(str(tmp_path / TABLE / "tokenizer.json"))
    plain.no_padding()
    for engine in ENGINES:
        runner = runner_of(tmp_path, engine)
        query = runner.card.query
        assert query is not None
        assert (runner.card.task, query.card.task, query.default) == (Task.SPARSE, Task.SPARSE, "document")
        batch: list[Tokens] = []
        for text, ids in zip(TEXTS, TextTokenizer.from_card(runner.card).encode(TEXTS, "", CUT), strict=True):
            alone = plain.encode(text, add_special_tokens=False).ids
            batch += [ids, TokenSequence(np.array(alone, dtype=np.int32), is_query_role=True)]
        vectors = runner.run(PackedBatch.pack(batch), OutputKind.SPARSE).sparse
        assert vectors is not None
        got = rows(list(vectors), CUT_VOCABULARY)
        assert greatest(got[::2] - documents) <= FP32_MAX_ABS_DIFF
        assert greatest(got[1::2] - queries) <= FP32_MAX_ABS_DIFF
        only = runner.run(PackedBatch.pack(batch[1::2]), OutputKind.SPARSE).sparse
        assert only is not None
        np.testing.assert_array_equal(rows(list(only), CUT_VOCABULARY), got[1::2])


def test_a_long_query_is_cut_as_sentence_transformers_cuts_it(bare: Path, tmp_path: Path) -> None:
    saved(bare, tmp_path)
    edit(tmp_path / TABLE / "tokenizer_config.json", model_max_length=3)
    model = SparseEncoder(str(tmp_path), device="cpu")
    runner = runner_of(tmp_path, "torch")
    vectors = runner.run(
        PackedBatch.pack(tokens_of(runner.card, TEXTS, query=True)), OutputKind.SPARSE
    ).sparse
    assert vectors is not None
    want = model.encode_query(TEXTS, convert_to_sparse_tensor=False).numpy()
    assert greatest(rows(list(vectors), CUT_VOCABULARY) - want) <= FP32_MAX_ABS_DIFF


def test_a_table_of_weights_may_be_all_of_a_model(bare: Path, tmp_path: Path) -> None:
    tokenizer = Transformer(str(bare)).tokenizer
    model = SparseEncoder(
        modules=[SparseStaticEmbedding(tokenizer, torch.rand(CUT_VOCABULARY))], device="cpu"
    )
    model.save_pretrained(str(tmp_path), create_model_card=False)
    runner = load_runner(RuntimeConfig.model_validate({"model": {"source": str(tmp_path)}}))
    assert (runner.card.task, runner.card.outputs, runner.card.query) == (
        Task.SPARSE,
        OutputKind.SPARSE,
        None,
    )
    vectors = runner.run(PackedBatch.pack(tokens_of(runner.card, TEXTS)), OutputKind.SPARSE).sparse
    assert vectors is not None
    want = model.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    assert greatest(rows(list(vectors), CUT_VOCABULARY) - want) <= FP32_MAX_ABS_DIFF


def test_other_weights_of_queries_give_another_identity(bare: Path, tmp_path: Path) -> None:
    saved(bare, tmp_path)
    before = card_of(tmp_path).vector_space
    save_file({"weight": np.ones(CUT_VOCABULARY, np.float32)}, tmp_path / TABLE / "model.safetensors")
    assert card_of(tmp_path).vector_space != before


def test_an_encoder_in_the_root_folder_is_found(bare: Path, tmp_path: Path) -> None:
    saved(bare, tmp_path)
    before = card_of(tmp_path)
    for file in (tmp_path / "document_0_Transformer").iterdir():
        file.rename(tmp_path / file.name)
    config = json.loads((tmp_path / "router_config.json").read_text())
    config["types"][""] = config["types"].pop("document_0_Transformer")
    config["structure"]["document"][0] = ""
    (tmp_path / "router_config.json").write_text(json.dumps(config))
    card = card_of(tmp_path)
    assert (card.vector_space, card.encoder_path) == (before.vector_space, "")


def few(folder: Path) -> None:
    save_file({"weight": np.ones(5, np.float32)}, folder / TABLE / "model.safetensors")


def negative(folder: Path) -> None:
    save_file({"weight": np.full(5, -1, np.float32)}, folder / TABLE / "model.safetensors")


def change(file: str, /, **changes: object) -> Callable[[Path], None]:
    return lambda folder: edit(folder / file, **changes)


REFUSED: dict[str, tuple[Callable[[Path], None], type[EmbedserveError], str]] = {
    "an encoder without a head for queries": (
        change("router_config.json", structure={"query": ["document_0_Transformer"], "document": [TABLE]}),
        UnsupportedArchitecture,
        "transformer_task = 'fill-mask' is not supported with the modules behind it",
    ),
    "the encoder of documents with another pooling": (
        change(
            "router_config.json",
            structure={
                "query": ["document_0_Transformer", "document_1_SpladePooling"],
                "document": ["document_0_Transformer", "document_1_SpladePooling", "other"],
            },
            types={
                "document_0_Transformer": "Transformer",
                "document_1_SpladePooling": "SpladePooling",
                "other": "Dropout",
            },
        ),
        UnsupportedArchitecture,
        "that share an encoder may differ in Pooling, Dense and Normalize alone",
    ),
    "a module without a type": (
        change("router_config.json", structure={"query": ["a"], "document": []}),
        ModelInvalid,
        "types lacks 'a', which structure names",
    ),
    "weights elsewhere": (
        change(f"{TABLE}/config.json", path="idf.json"),
        UnsupportedArchitecture,
        "path .weights in a JSON file. is not supported",
    ),
    "too few weights": (few, ModelInvalid, "has weights of 5 tokens, tokenizer.json gives ids up to 2999"),
    "weights below zero": (negative, ModelInvalid, "numbers of at least 0"),
}


@pytest.mark.parametrize(("damage", "want_error", "want_message"), REFUSED.values(), ids=REFUSED.keys())
def test_routes_that_cannot_be_served_are_refused_by_name(
    bare: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    want_error: type[EmbedserveError],
    want_message: str,
) -> None:
    saved(bare, tmp_path)
    damage(tmp_path)
    with pytest.raises(want_error, match=want_message):
        card_of(tmp_path)
