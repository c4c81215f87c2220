"""gte-multilingual-base, dense and sparse of one forward: transformers' class and the model's own arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch

from embedserve_runtime.config import load_config
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind, SparseVector
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer
from tests.census.gte_multilingual import LAYOUTS, Built, Layout, build_gte_multilingual
from tests.runtime.pipelines.folders import CUT
from tests.runtime.rpc.rpc_kit import served
from tests.support.in_process_server import serve_in_process
from tests.support.texts import parity_texts
from tests.support.tolerances import FP32_MAX_ABS_DIFF

MAX_LENGTH = 256
DIMENSION = 32
SPECIAL_IDS = (0, 1, 2, 3)
ENGINES = ("onnx", "torch")
FEW = ["the river", "naïve Straße вода the the river", "北京 本 the", "<mask> the 42 unknown☃"]


@dataclass(frozen=True)
class Reference:
    """The outputs of transformers' class for some texts, and what the model's page makes of them."""

    built: Built
    texts: Sequence[str]

    @cached_property
    def outputs(self) -> list[tuple[FloatArray, Mapping[int, float]]]:
        """For each text the first token's last hidden state, (hidden,), and the weights of its token ids."""
        return [self._run(text) for text in self.texts]

    def _run(self, text: str) -> tuple[FloatArray, Mapping[int, float]]:
        ids = self.built.tokenizer(text, truncation=True, max_length=MAX_LENGTH)["input_ids"]
        with torch.no_grad():
            outputs = self.built.model(torch.tensor([ids]), output_hidden_states=True)
        weights: dict[int, float] = {}
        for token, weight in zip(ids, torch.relu(outputs.logits)[0, :, 0].tolist(), strict=True):
            if token not in SPECIAL_IDS and weight > weights.get(token, 0):
                weights[token] = weight
        state: FloatArray = outputs.hidden_states[-1][0, 0].numpy()
        return state, weights

    def dense(self, dimension: int) -> FloatArray:
        states = np.stack([state for state, _ in self.outputs])
        return normalize(np.ascontiguousarray(states[:, :dimension]))

    def scores(self, dimension: int, dense_weight: float, sparse_weight: float) -> FloatArray:
        """The hybrid scores of the first text with each of the others."""
        vectors, (weights, *others) = self.dense(dimension), [weights for _, weights in self.outputs]
        shared = [sum(weights[token] * other.get(token, 0) for token in weights) for other in others]
        scores: FloatArray = dense_weight * vectors[1:] @ vectors[0] + sparse_weight * np.array(
            shared, dtype=np.float32
        )
        return scores


@pytest.fixture(scope="module", params=LAYOUTS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    layout: Layout = request.param
    return build_gte_multilingual(tmp_path_factory.mktemp(layout), layout)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_gte_multilingual(tmp_path_factory.mktemp("first"), "new")


def open_runner(built: Built, engine: str = "onnx", **model: object) -> Runner:
    settings = {
        "source": str(built.folder),
        "max_length": MAX_LENGTH,
        "outputs": ["dense", "sparse"],
        **model,
    }
    return load_runner(load_config(flags={"model": settings, "engine": {"kind": engine, "threads": 2}}))


def check_sparse(vectors: Sequence[SparseVector], reference: Reference) -> None:
    assert len(vectors) == len(reference.outputs)
    for vector, (_, weights) in zip(vectors, reference.outputs, strict=True):
        assert vector.indices.tolist() == sorted(weights)
        want = np.array([weights[token] for token in sorted(weights)], dtype=np.float32)
        np.testing.assert_allclose(vector.values, want, atol=FP32_MAX_ABS_DIFF)


@pytest.mark.parametrize("texts", [40, pytest.param(500, marks=pytest.mark.thorough)])
def test_dense_and_sparse_of_one_forward_equal_transformers(built: Built, texts: int) -> None:
    reference = Reference(built, parity_texts(texts))
    for engine in ENGINES:
        runner = open_runner(built, engine)
        tokens = TextTokenizer.from_card(runner.card).encode(reference.texts, "", CUT)
        dense: list[FloatArray] = []
        sparse: list[SparseVector] = []
        for start in range(0, len(tokens), 50):
            outputs = runner.run(
                PackedBatch.pack(tokens[start : start + 50]), OutputKind.DENSE | OutputKind.SPARSE
            )
            assert outputs.dense is not None
            assert outputs.sparse is not None
            dense.append(normalize(np.ascontiguousarray(outputs.dense[:, :DIMENSION])))
            sparse += outputs.sparse
        assert np.abs(np.concatenate(dense) - reference.dense(DIMENSION)).max() <= FP32_MAX_ABS_DIFF
        check_sparse(sparse, reference)
        entries = sum(len(vector.indices) for vector in sparse)
        assert len(sparse) < entries < sum(len(set(map(int, ids))) for ids in tokens)


def test_both_layouts_are_one_model(first: Built, tmp_path_factory: pytest.TempPathFactory) -> None:
    own = build_gte_multilingual(tmp_path_factory.mktemp("own"), "gte")
    new, gte = (open_runner(model).card for model in (first, own))
    assert new.token_heads == gte.token_heads
    assert (new.pipeline, new.outputs) == (gte.pipeline, gte.outputs)


def test_sentence_transformers_files_change_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    folders = [tmp_path_factory.mktemp(name) for name in ("with", "without")]
    plain = [
        open_runner(build_gte_multilingual(folder, "new", modules=modules)).card
        for folder, modules in zip(folders, (True, False), strict=True)
    ]
    assert plain[0].pipeline == plain[1].pipeline
    assert plain[0].vector_space == plain[1].vector_space


async def test_every_http_route_gives_them(first: Built) -> None:
    reference = Reference(first, FEW)
    check = np.testing.assert_allclose
    async with serve_in_process(model=open_runner(first, dimensions=DIMENSION)) as server:

        async def ask(path: str, **body: object) -> Any:
            answer = await server.client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        check(await ask("/embed", inputs=FEW), reference.dense(DIMENSION), atol=FP32_MAX_ABS_DIFF)
        rows = await ask("/embed_sparse", inputs=FEW)
        both = await ask("/v1/encode", inputs=FEW, outputs=["dense", "sparse"])
        runs = server.get_metric("embedserve_engine_seconds_count")
        stored = await ask("/v1/encode", inputs=FEW, outputs=["dense", "sparse"], encoding="pgvector")
        words = await ask("/v1/encode", inputs=FEW, outputs=["sparse"], sparse_map=True)
    assert runs == 3  # one for each answer
    check(both["dense"], reference.dense(DIMENSION), atol=FP32_MAX_ABS_DIFF)
    check_sparse([sparse_vector({e["index"]: e["value"] for e in row}) for row in rows], reference)
    check_sparse([sparse_vector(dict(zip(*e.values(), strict=True))) for e in both["sparse"]], reference)
    width = first.model.config.vocab_size
    for literal, (_, weights) in zip(stored["sparse"], reference.outputs, strict=True):
        entries = literal.removesuffix(f"/{width}").strip("{}").split(",")
        assert [int(entry.split(":")[0]) - 1 for entry in entries if entry] == sorted(weights)
    for named, (_, weights) in zip(words["sparse_map"], reference.outputs, strict=True):
        check(sorted(named.values()), sorted(weights.values()), atol=FP32_MAX_ABS_DIFF)


def sparse_vector(entries: Mapping[int, float]) -> SparseVector:
    indices = np.array([*entries], dtype=np.int32)
    return SparseVector(indices, np.array([*entries.values()], dtype=np.float32))


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_hybrid_score_is_the_weighted_sum_of_cosine_and_shared_weights(
    first: Built, engine: str
) -> None:
    query, *documents = FEW
    weights = {"dense": 1.0, "sparse": 0.3}
    want = Reference(first, FEW).scores(DIMENSION, *weights.values())
    body = {"query": query, "documents": documents, "weights": weights, "divide_by_weights": False}
    async with served(model=open_runner(first, engine, dimensions=DIMENSION)) as server:
        answer = (await server.bench.client.post("/v1/score", json=body)).json()
        called = await server.client.ask(
            "embedserve.v1.Embeddings/Score",
            query=query,
            documents=documents,
            weights=weights,
            sum_only=True,
        )
    np.testing.assert_allclose(answer["scores"], want, atol=FP32_MAX_ABS_DIFF)
    np.testing.assert_allclose(list(called.scores), want, atol=FP32_MAX_ABS_DIFF)


async def test_grpc_gives_both_of_one_forward(first: Built) -> None:
    reference = Reference(first, FEW)
    async with served(model=open_runner(first, dimensions=DIMENSION)) as server:
        answer = await server.client.ask(
            "embedserve.v1.Embeddings/Encode", texts=FEW, outputs=["OUTPUT_DENSE", "OUTPUT_SPARSE"]
        )
        runs = server.bench.get_metric("embedserve_engine_seconds_count")
    assert runs == 1
    dense = np.frombuffer(answer.dense.values, dtype="<f4").reshape(len(FEW), DIMENSION)
    assert np.abs(dense - reference.dense(DIMENSION)).max() <= FP32_MAX_ABS_DIFF
    vectors = [
        SparseVector(np.frombuffer(row.indices, dtype="<i4"), np.frombuffer(row.values, dtype="<f4"))
        for row in answer.sparse
    ]
    check_sparse(vectors, reference)
