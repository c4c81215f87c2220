"""`/v1/score` against the formulas of FlagEmbedding 1.4.2's `compute_score`, and of a cross-encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from embedserve_runtime.config import RuntimeConfig
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ScoreFunction
from embedserve_runtime.runners.base import Runner
from tests.runtime.api.test_scoring import pair_logits
from tests.runtime.heads.test_bge_m3 import M3
from tests.support.in_process_server import serve_in_process
from tests.support.tiny_models import SPACE, build_card, build_classifier_card, build_splade_card
from tests.support.tiny_runners import GatedRun, build_mean_run
from tests.support.tiny_tokenizers import WORDS

# Words that query and documents share, more and fewer.
QUERY = " ".join(WORDS[:20])
DOCUMENTS = [" ".join(WORDS[:30:2]), "xyz", " ".join(WORDS[18:40]), " ".join(WORDS[:8] * 2)]
RERANKER = build_classifier_card("LABEL_0", scores=ScoreFunction.SIGMOID)


@pytest.fixture(scope="module")
def m3(tmp_path_factory: pytest.TempPathFactory) -> M3:
    torch.manual_seed(5)
    return M3.save(tmp_path_factory.mktemp("m3"), 2, 3, 10, torch.float32)


@pytest.fixture(scope="module")
def runner(m3: M3) -> Runner:
    return load_runner(RuntimeConfig.model_validate({"model": {"source": str(m3.folder)}}))


def flag_embedding_scores(model: M3) -> dict[str, FloatArray]:
    """Return the scores by measure: products, products of shared weights, and the mean over the query's vectors of the
    best product."""
    dense, weights, vectors = model.reference(model.ids(QUERY))
    scores: dict[str, list[float]] = {"dense": [], "sparse": [], "multi_vector": []}
    for text in DOCUMENTS:
        other_dense, other_weights, other_vectors = model.reference(model.ids(text))
        shared = weights.keys() & other_weights.keys()
        scores["dense"].append(float(dense @ other_dense))
        scores["sparse"].append(sum(weights[token] * other_weights[token] for token in shared))
        scores["multi_vector"].append(float((vectors @ other_vectors.T).max(axis=1).sum() / len(vectors)))
    return {name: np.array(values, dtype=np.float32) for name, values in scores.items()}


# Weights asked for, and whether their sum divides.
WEIGHTED: dict[str, tuple[Mapping[str, float] | None, bool]] = {
    "all alike, the default": (None, True),
    "weights of the model's page": ({"dense": 0.4, "sparse": 0.2, "multi_vector": 0.4}, True),
    "undivided, as in training": ({"dense": 1.0, "sparse": 0.3, "multi_vector": 1.0}, False),
    "sparse and dense": ({"dense": 1.0, "sparse": 2.0}, True),
    "one told and not added": ({"dense": 1.0, "multi_vector": 0.0}, True),
    "one alone": ({"multi_vector": 3.0}, True),
}


@pytest.mark.parametrize(("weights", "divides"), WEIGHTED.values(), ids=WEIGHTED)
async def test_scores_are_flag_embeddings_weighted_sums(
    weights: Mapping[str, float] | None, divides: bool, m3: M3, runner: Runner
) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "weights": weights, "divide_by_weights": divides}
    async with serve_in_process(model=runner) as server:
        answer = (await server.client.post("/v1/score", json=body)).json()
    measures = flag_embedding_scores(m3)
    assert len(set(measures["sparse"].tolist())) > 2
    used = weights or dict.fromkeys(measures, 1.0)
    want = sum(weight * measures[name] for name, weight in used.items())
    np.testing.assert_allclose(answer["scores"], want / sum(used.values()) if divides else want, atol=1e-4)
    assert answer["weights"] == used
    assert set(answer["measures"]) == set(used)
    for name, scores in answer["measures"].items():
        np.testing.assert_allclose(scores, measures[name], atol=1e-4)


async def test_all_measures_come_from_one_run_of_the_engine_on_query_and_documents() -> None:
    run = GatedRun(build_mean_run())
    async with serve_in_process(run) as server:
        run.release()
        body = {"query": "hello", "documents": ["a vector", "a list of numbers"]}
        answer = await server.client.post("/v1/score", json=body)
    assert [len(batch.lengths) for batch in run.batches] == [3]
    assert answer.headers["x-compute-tokens"] == str(3 + 4 + 6)
    assert answer.headers["x-embedserve-vector-space"] == SPACE


async def test_a_cross_encoder_gives_its_logits() -> None:
    documents = ["a list of numbers", "hello", "vector learning"]
    body = {"query": "deep learning", "documents": documents}
    async with serve_in_process(card=RERANKER) as server:
        answer = (await server.client.post("/v1/score", json=body)).json()
    want = pair_logits("deep learning", documents)
    assert list(answer["measures"]) == ["cross_encoder"]
    np.testing.assert_allclose(answer["scores"], want, rtol=1e-5)


async def test_query_and_documents_can_have_prompts_of_their_own() -> None:
    card = build_card(prompts={"query": "query: ", "passage": "passage: "})
    body = {
        "query": "hello",
        "documents": ["a vector"],
        "query_prompt_name": "query",
        "document_prompt_name": "passage",
    }
    async with serve_in_process(card=card) as server:
        answer = (await server.client.post("/v1/score", json=body)).json()
        vectors = (
            await server.client.post("/embed", json={"inputs": ["query: hello", "passage: a vector"]})
        ).json()
    assert answer["scores"] == pytest.approx([float(np.dot(*vectors))], abs=1e-6)


REFUSED: dict[str, tuple[ModelCard, dict[str, Any], int, str]] = {
    "no documents": (build_card(), {"documents": []}, 400, "`documents` cannot be empty"),
    "an empty document": (build_card(), {"documents": ["a", ""]}, 400, "input 1 is empty"),
    "an empty query": (build_card(), {"query": ""}, 400, "input 0 is empty"),
    "what the model lacks": (
        build_card(),
        {"weights": {"sparse": 1}},
        424,
        "cannot score by `sparse`: it has dense",
    ),
    "a cross-encoder of vectors": (
        build_splade_card(),
        {"weights": {"cross_encoder": 1}},
        424,
        "it has sparse",
    ),
    "several labels": (build_classifier_card("bad", "good"), {}, 424, "not a re-ranker"),
    "a weight below 0": (build_card(), {"weights": {"dense": -1}}, 422, "`weights.dense` must be at least 0"),
    "a weight without bound": (build_card(), {"weights": {"dense": 1e300}}, 422, "from 0 to 1000000"),
    "weights of 0": (build_card(), {"weights": {"dense": 0}}, 422, "cannot be divided by"),
    "prompts of a pair": (RERANKER, {"query_prompt_name": "query"}, 422, "pairs get none"),
    "no such prompt": (build_card(), {"document_prompt_name": "other"}, 422, "'other' does not exist"),
}


@pytest.mark.parametrize(("card", "change", "want_status", "want_message"), REFUSED.values(), ids=REFUSED)
async def test_what_cannot_be_scored_is_refused(
    card: ModelCard, change: dict[str, Any], want_status: int, want_message: str
) -> None:
    async with serve_in_process(card=card) as server:
        answer = await server.client.post("/v1/score", json={"query": "a", "documents": ["b"]} | change)
        queued = server.dispatcher.queued_inputs
    assert answer.status_code == want_status
    assert want_message in answer.json()["message"]
    assert queued == 0
