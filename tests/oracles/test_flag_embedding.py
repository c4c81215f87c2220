"""FlagEmbedding itself against the routes of our server, on both engines: BGE-M3's outputs and every kind of score,
dense models with their instruction, rerankers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import (
    BertForSequenceClassification,
    BertModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from embedserve_runtime.config import load_config
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.runners.base import Runner
from tests.oracles.outside import answers, needs_oracles
from tests.runtime.api.test_score import DOCUMENTS, QUERY
from tests.runtime.engines.engines import ENGINES
from tests.runtime.heads.test_bge_m3 import M3, SHAPES, TEXTS
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines.folders import TEXTS as ENGLISH
from tests.runtime.pipelines.folders import bert
from tests.support.in_process_server import serve_in_process
from tests.support.models import tiny
from tests.support.tiny_tokenizers import xlm_roberta_tokenizer
from tests.support.tolerances import FP32_MAX_ABS_DIFF

pytestmark = needs_oracles

MAX_LENGTH = 40
ASK = "find what answers: "
# Of dense, sparse and ColBERT.
WEIGHTS = (None, (0.4, 0.2, 0.4), (1.0, 0.3, 2.0), (0.0, 1.0, 0.0))
POOLINGS = ("cls", "mean")
PAIRS = [("a query", text) for text in ENGLISH if len(text) < 100]
WORD_PAIRS = [(QUERY[:11], text[:40]) for text in DOCUMENTS]


def for_version_4(folder: Path, tokenizer: str) -> None:
    """transformers 5 saves a class of tokenizers that 4 does not know."""
    edit(folder / "tokenizer_config.json", tokenizer_class=tokenizer)


def m3_ask(folder: Path, shape: tuple[int, int, int, torch.dtype]) -> dict[str, Any]:
    torch.manual_seed(5)
    M3.save(folder, *shape)
    for_version_4(folder, "XLMRobertaTokenizerFast")
    return {
        "oracle": "m3",
        "columns": shape[2],
        "texts": TEXTS,
        "pairs": [(QUERY, text) for text in DOCUMENTS],
        "weights": WEIGHTS,
    }


def dense_ask(folder: Path, pooling: str) -> dict[str, Any]:
    bert(folder / "bare", BertModel)
    modules = [Transformer(str(folder / "bare")), Pooling(24, pooling_mode=pooling), Normalize()]
    SentenceTransformer(modules=modules, device="cpu", prompts={"query": ASK}).save_pretrained(
        str(folder), create_model_card=False
    )
    for_version_4(folder, "BertTokenizerFast")
    return {
        "oracle": "dense",
        "pooling": pooling,
        "instruction": ASK,
        "queries": ENGLISH,
        "passages": ENGLISH,
    }


def reranker_ask(folder: Path, family: str) -> dict[str, Any]:
    if family == "bert":
        bert(folder, BertForSequenceClassification, num_labels=1)
        for_version_4(folder, "BertTokenizerFast")
        return {"oracle": "reranker", "pairs": PAIRS}
    config = XLMRobertaConfig(
        vocab_size=75,
        hidden_size=36,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=50,
        max_position_embeddings=42,
        type_vocab_size=1,
        num_labels=1,
    )
    tiny(folder, XLMRobertaForSequenceClassification, config)
    xlm_roberta_tokenizer(folder)
    for_version_4(folder, "XLMRobertaTokenizerFast")
    return {"oracle": "reranker", "pairs": WORD_PAIRS}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Folder and answer of each, from one process."""
    home = tmp_path_factory.mktemp("flag")
    asks: dict[str, dict[str, Any]] = {}
    for name, shape in SHAPES.items():
        asks[name] = m3_ask(home / name, shape)
    for pooling in POOLINGS:
        asks[pooling] = dense_ask(home / pooling, pooling)
    for family in ("bert", "xlm-roberta"):
        asks[family] = reranker_ask(home / family, family)
    said = answers(
        [{"folder": str(home / name), "max_length": MAX_LENGTH} | ask for name, ask in asks.items()]
    )
    return {name: (home / name, answer) for name, answer in zip(asks, said, strict=True)}


def served(folder: Path, engine: str) -> Runner:
    # A model's own length is what FlagEmbedding is told.
    model = {"source": str(folder), "max_length": MAX_LENGTH}
    return load_runner(load_config(flags={"model": model, "engine": {"kind": engine, "threads": 1}}))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SHAPES)
async def test_the_three_outputs_of_one_request_are_flag_embeddings(
    models: dict[str, tuple[Path, Any]], name: str, engine: str
) -> None:
    folder, want = models[name]
    body = {"inputs": TEXTS, "outputs": ["dense", "sparse", "multi_vector"]}
    async with serve_in_process(model=served(folder, engine)) as server:
        got = (await server.client.post("/v1/encode", json=body)).json()
    np.testing.assert_allclose(got["dense"], want["dense"], atol=FP32_MAX_ABS_DIFF)
    assert sum(map(len, want["sparse"])) > 10
    for ours, weights in zip(got["sparse"], want["sparse"], strict=True):
        assert ours["indices"] == sorted(map(int, weights))
        theirs = [weights[str(token)] for token in ours["indices"]]
        np.testing.assert_allclose(ours["values"], theirs, atol=FP32_MAX_ABS_DIFF)
    for ours, theirs in zip(got["multi_vector"], want["multi_vectors"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=FP32_MAX_ABS_DIFF)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SHAPES)
async def test_every_kind_of_score_is_flag_embeddings_with_every_kind_of_weights(
    models: dict[str, tuple[Path, Any]], name: str, engine: str
) -> None:
    folder, want = models[name]
    async with serve_in_process(model=served(folder, engine)) as server:

        async def scored(weights: Mapping[str, float] | None) -> Any:
            body = {"query": QUERY, "documents": DOCUMENTS, "weights": weights}
            return (await server.client.post("/v1/score", json=body)).json()

        for given, scores in zip(WEIGHTS, want["scores"], strict=True):
            names = ("dense", "sparse", "multi_vector")
            weights = None if given is None else dict(zip(names, given, strict=True))
            of_all = await scored(weights)
            close_to(of_all["scores"], scores["colbert+sparse+dense"])
            for measure, theirs in zip(names, ("dense", "sparse", "colbert"), strict=True):
                close_to(of_all["measures"][measure], scores[theirs])
            of_two = dict.fromkeys(names[:2], 1.0) if weights is None else {n: weights[n] for n in names[:2]}
            close_to((await scored(of_two))["scores"], scores["sparse+dense"])


def close_to(ours: Sequence[float], theirs: Sequence[float]) -> None:
    np.testing.assert_allclose(ours, theirs, atol=FP32_MAX_ABS_DIFF)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pooling", POOLINGS)
async def test_dense_vectors_of_queries_and_passages_are_flag_embeddings(
    models: dict[str, tuple[Path, Any]], pooling: str, engine: str
) -> None:
    folder, want = models[pooling]
    async with serve_in_process(model=served(folder, engine)) as server:
        queries = await server.client.post("/embed", json={"inputs": ENGLISH, "prompt_name": "query"})
        passages = await server.client.post("/embed", json={"inputs": ENGLISH})
    np.testing.assert_allclose(queries.json(), want["queries"], atol=FP32_MAX_ABS_DIFF)
    np.testing.assert_allclose(passages.json(), want["passages"], atol=FP32_MAX_ABS_DIFF)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("family", "pairs"), [("bert", PAIRS), ("xlm-roberta", WORD_PAIRS)])
async def test_scores_of_a_reranker_are_flag_embeddings(
    models: dict[str, tuple[Path, Any]], family: str, pairs: list[tuple[str, str]], engine: str
) -> None:
    folder, want = models[family]
    query, texts = pairs[0][0], [text for _, text in pairs]
    async with serve_in_process(model=served(folder, engine)) as server:
        for raw, scores in zip((True, False), want, strict=True):
            body = {"query": query, "texts": texts, "raw_scores": raw}
            ranked = (await server.client.post("/rerank", json=body)).json()
            ours = {item["index"]: item["score"] for item in ranked}
            close_to([ours[place] for place in range(len(texts))], scores)
