"""Whole ways, from the text of a request to the numbers of its answer, with models that need more than ids and rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertForMaskedLM

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.runners.base import Runner
from tests.runtime.heads import test_bge_m3, test_causal
from tests.runtime.model.test_card import edit
from tests.runtime.pipelines import test_dense_routes, test_routes_of_models
from tests.runtime.pipelines.folders import TEXTS, bert
from tests.support.in_process_server import serve_in_process
from tests.support.models import tiny_bert
from tests.support.tokenizers import with_minilm_tokenizer
from tests.support.tolerances import FP32_MAX_ABS_DIFF

INSTRUCTION = "Find the answer."


def model_in(folder: Path, **settings: Any) -> Runner:
    return load_runner(RuntimeConfig.model_validate({"model": {"source": str(folder), **settings}}))


async def test_a_prompt_that_is_left_out_of_pooling_is_left_out_as_sentence_transformers_does(
    tmp_path: Path,
) -> None:
    tiny_bert(tmp_path / "bare", vocab_size=30_522)
    with_minilm_tokenizer(tmp_path / "bare")
    transformer = Transformer(str(tmp_path / "bare"))
    modules = [transformer, Pooling(36, pooling_mode="mean", include_prompt=False)]
    oracle = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "search for this: "})
    oracle.save(str(tmp_path / "saved"))
    texts = ["hello world", "a", "some more words in a longer text"]
    async with serve_in_process(model=model_in(tmp_path / "saved")) as server:
        for name in ("query", None):
            body = {"inputs": texts, "prompt_name": name, "normalize": False}
            got = (await server.client.post("/embed", json=body)).json()
            want = oracle.encode(texts, prompt_name=name)
            np.testing.assert_allclose(got, want, atol=FP32_MAX_ABS_DIFF)


async def test_a_causal_reranker_ranks_by_its_written_prompt_and_the_instruction_of_the_request(
    tmp_path: Path,
) -> None:
    model = test_causal.save(tmp_path, **test_causal.SHAPES["tied, grouped heads"])
    query, documents = "why?", ["because", "no", "a longer document of some words"]
    body = {"query": query, "documents": documents, "instruction": INSTRUCTION}
    async with serve_in_process(model=model_in(tmp_path, task="rerank")) as server:
        results = (await server.client.post("/v2/rerank", json=body)).json()["results"]
        alone = await server.client.post("/predict", json={"inputs": "one text"})
    for item in results:
        pair = (query, documents[item["index"]])
        want_score = test_causal.reference(model, tmp_path, pair, INSTRUCTION)
        assert item["relevance_score"] == pytest.approx(want_score, abs=FP32_MAX_ABS_DIFF)
    assert len(results) == len(documents)
    assert (alone.status_code, "send pairs" in alone.json()["error"]) == (422, True)


async def test_bge_m3_gives_its_three_outputs_of_one_request(tmp_path: Path) -> None:
    m3 = test_bge_m3.M3.save(tmp_path, *test_bge_m3.SHAPES["as wide as the hidden states"])
    body = {"inputs": list(test_bge_m3.TEXTS), "outputs": ["dense", "sparse", "multi_vector"]}
    async with serve_in_process(model=model_in(tmp_path)) as server:
        content = (await server.client.post("/v1/encode", json=body)).json()
        by_tei = (await server.client.post("/embed_sparse", json={"inputs": body["inputs"]})).json()
    for index, text in enumerate(test_bge_m3.TEXTS):
        dense, weights, vectors = m3.reference(m3.ids(text))
        np.testing.assert_allclose(content["dense"][index], normalize(dense[None])[0], atol=FP32_MAX_ABS_DIFF)
        sparse = content["sparse"][index]
        got_weights = dict(zip(sparse["indices"], sparse["values"], strict=True))
        assert got_weights == pytest.approx(weights, abs=FP32_MAX_ABS_DIFF)
        assert {entry["index"]: entry["value"] for entry in by_tei[index]} == got_weights
        np.testing.assert_allclose(content["multi_vector"][index], vectors, atol=FP32_MAX_ABS_DIFF)


async def test_queries_of_a_model_without_inference_for_them_take_their_own_way_on_every_route(
    tmp_path: Path,
) -> None:
    bare = bert(tmp_path / "bare", BertForMaskedLM)
    oracle = test_routes_of_models.saved(bare, tmp_path / "saved")
    texts = list(TEXTS)
    want_queries = oracle.encode_query(texts, convert_to_sparse_tensor=False).numpy()
    want_documents = oracle.encode_document(texts, convert_to_sparse_tensor=False).numpy()
    async with serve_in_process(model=model_in(tmp_path / "saved")) as server:

        async def by_tei(**options: str) -> FloatArray:
            answer = await server.client.post("/embed_sparse", json={"inputs": texts} | options)
            entries = [
                (row, entry["index"], entry["value"])
                for row, item in enumerate(answer.json())
                for entry in item
            ]
            rows: FloatArray = np.zeros(want_queries.shape, dtype=np.float32)
            for row, index, value in entries:
                rows[row, index] = value
            return rows

        np.testing.assert_allclose(await by_tei(), want_documents, atol=FP32_MAX_ABS_DIFF)
        np.testing.assert_allclose(await by_tei(prompt_name="query"), want_queries, atol=FP32_MAX_ABS_DIFF)
        body = {"inputs": texts[:1], "input_type": "query"}
        (vector,) = (await server.client.post("/v1/encode", json=body)).json()["sparse"]
    np.testing.assert_allclose(want_queries[0][vector["indices"]], vector["values"], atol=FP32_MAX_ABS_DIFF)
    assert len(vector["indices"]) == np.count_nonzero(want_queries[0])


async def test_queries_of_an_asymmetric_model_take_their_own_way_and_an_input_must_be_called_one(
    tmp_path: Path,
) -> None:
    bare = test_dense_routes.Bare(tmp_path)
    modules = test_dense_routes.SHARED["two modules beside none"](bare)
    oracle = test_dense_routes.saved(tmp_path / "saved", *modules)
    router = tmp_path / "saved" / "2_Router" / "router_config.json"
    edit(router, parameters={"default_route": None, "allow_empty_key": False})
    async with serve_in_process(model=model_in(tmp_path / "saved")) as server:
        body = {"inputs": list(TEXTS)}
        for name, want in (
            ("query", oracle.encode_query(TEXTS)),
            ("document", oracle.encode_document(TEXTS)),
        ):
            raw = {"normalize": False} if name == "document" else {}
            by_tei = (await server.client.post("/embed", json=body | raw | {"prompt_name": name})).json()
            np.testing.assert_allclose(by_tei, want, atol=FP32_MAX_ABS_DIFF)
            native = (await server.client.post("/v1/encode", json=body | {"input_type": name})).json()[
                "dense"
            ]
            np.testing.assert_allclose(native, want, atol=FP32_MAX_ABS_DIFF)
        refused = await server.client.post("/embed", json=body)
    assert refused.status_code == 422
    assert "set the prompt name" in refused.json()["error"]
