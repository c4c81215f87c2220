"""Vectors of the real MiniLM equal those of sentence-transformers, whatever else is in the batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.runtime.heads.head_runner import dense_of
from tests.support.texts import MAX_WORDS, WORDS, parity_texts
from tests.support.tolerances import FP32_MAX_ABS_DIFF, NEIGHBOUR_MAX_ABS_DIFF

BATCH_TEXTS = 64

Embed = Callable[[Sequence[str], int], FloatArray]


@pytest.fixture(scope="module", params=[100, pytest.param(500, marks=pytest.mark.thorough)])
def texts(request: pytest.FixtureRequest) -> list[str]:
    return parity_texts(request.param)


@pytest.fixture(scope="module")
def want_vectors(minilm: Path, texts: list[str]) -> NDArray[np.float32]:
    model = SentenceTransformer(str(minilm), device="cpu")
    vectors: NDArray[np.float32] = model.encode(texts, batch_size=16, convert_to_numpy=True)
    return vectors


@pytest.fixture(scope="module")
def embed(minilm_runner: Runner) -> Embed:
    tokenizer = TextTokenizer.from_card(minilm_runner.card)

    def run(texts: Sequence[str], batch_texts: int) -> FloatArray:
        ids = tokenizer.encode(texts, prompt="", rules=TruncationRules(truncate=True))
        batches = [ids[start : start + batch_texts] for start in range(0, len(ids), batch_texts)]
        return normalize(np.concatenate([dense_of(minilm_runner, batch) for batch in batches]))

    return run


@pytest.fixture(scope="module")
def alone(embed: Embed, texts: list[str]) -> FloatArray:
    return embed(texts, 1)


def test_the_texts_cover_ten_scripts_and_one_to_two_thousand_words(texts: list[str]) -> None:
    lengths = {len(text.split(" ")) for text in texts}
    assert (len(WORDS), min(lengths), max(lengths)) == (10, 1, MAX_WORDS)


def test_a_text_alone_gives_the_vector_of_sentence_transformers(
    alone: FloatArray, want_vectors: NDArray[np.float32]
) -> None:
    assert np.abs(alone - want_vectors).max() <= FP32_MAX_ABS_DIFF


def test_neighbours_in_the_batch_do_not_change_a_vector(
    embed: Embed, texts: list[str], alone: FloatArray, want_vectors: NDArray[np.float32]
) -> None:
    batched = embed(texts, BATCH_TEXTS)
    assert np.abs(batched - alone).max() <= NEIGHBOUR_MAX_ABS_DIFF
    assert np.abs(batched - want_vectors).max() <= FP32_MAX_ABS_DIFF


@pytest.mark.thorough
def test_other_neighbours_in_another_order_do_not_change_a_vector(
    embed: Embed, texts: list[str], alone: FloatArray, want_vectors: NDArray[np.float32]
) -> None:
    order = list(range(len(texts)))
    random.Random(3).shuffle(order)
    shuffled = embed([texts[index] for index in order], BATCH_TEXTS)
    assert np.abs(shuffled - alone[order]).max() <= NEIGHBOUR_MAX_ABS_DIFF
    assert np.abs(shuffled - want_vectors[order]).max() <= FP32_MAX_ABS_DIFF
