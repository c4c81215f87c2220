"""Models with adapters for several tasks in one process, on both engines: a batch with sequences of every task gives
each the vector that its adapter gives alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from embedserve_runtime.config import load_config
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.runners.base import Runner
from tests.census.dense_folders import save_dense, write_modules
from tests.census.jina import INSTRUCTIONS, merge_adapter
from tests.census.jina_v5 import PROMPTS, TASKS, merge_jina_v5, save_jina_v5
from tests.census.kinds import ENGINES
from tests.census.tokenizers import MAX_TOKENS
from tests.runtime.heads.head_runner import dense_of, greatest
from tests.runtime.pipelines.folders import TEXTS, finished, tokens_of
from tests.support.tolerances import FP32_MAX_ABS_DIFF


@dataclass(frozen=True)
class AdapterModel:
    """A folder, its tasks in the order in which they are served, and what the loader makes of the texts with the
    adapter of each task merged: float32 [texts, dimensions]."""

    folder: Path
    tasks: Sequence[str]
    expected: Sequence[FloatArray]


def build_v3(home: Path) -> AdapterModel:
    """jina-embeddings-v3, texts as documents."""
    twin, folder = save_dense("xlm-roberta-flash-adapters", "mean normalize", home, max_length=MAX_TOKENS)
    adapters = {
        "text-matching": "text-matching",
        "retrieval": "retrieval.passage",
        "separation": "separation",
    }
    expected = []
    for adapter in adapters.values():
        merged = merge_adapter(folder, twin, home / adapter, adapter)
        model = SentenceTransformer(str(merged), device="cpu")
        expected.append(model.encode(TEXTS, prompt=INSTRUCTIONS[adapter] or None))
    return AdapterModel(folder, list(adapters), expected)


def build_v5(backbone: str, home: Path) -> AdapterModel:
    """jina-embeddings-v5-text, texts as documents."""
    twin, folder = save_jina_v5(backbone, home)
    write_modules(twin, "last normalize", max_length=MAX_TOKENS)
    expected = []
    for task in TASKS:
        merged = merge_jina_v5(folder, twin, home / task, task)
        model = SentenceTransformer(str(merged), device="cpu")
        expected.append(model.encode(TEXTS, prompt=PROMPTS["document"]))
    return AdapterModel(folder, TASKS, expected)


MODELS: dict[str, Callable[[Path], AdapterModel]] = {
    "jina-embeddings-v3": build_v3,
    "jina-embeddings-v5, an encoder": lambda home: build_v5("jina-v5-eurobert", home),
    "jina-embeddings-v5, a decoder": lambda home: build_v5("jina-v5-qwen3", home),
}


def encode_every_task(runner: Runner) -> list[FloatArray]:
    """The vectors of the texts by each task, from one batch in which the tasks take turns."""
    cards = (runner.card, *runner.card.other_tasks)
    sequences = [
        replace(tokens, task=number)
        for by_task in zip(*(tokens_of(card, TEXTS) for card in cards), strict=True)
        for number, tokens in enumerate(by_task)
    ]
    rows = dense_of(runner, sequences)
    return [
        finished(card, np.ascontiguousarray(rows[number :: len(cards)])) for number, card in enumerate(cards)
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_every_task_gives_each_the_vectors_of_its_adapter_on_both_engines(
    name: str, tmp_path: Path
) -> None:
    model = MODELS[name](tmp_path)
    for engine in ENGINES:
        settings = {"source": str(model.folder), "adapters": list(model.tasks)}
        runner = load_runner(load_config(flags={"model": settings, "engine": {"kind": engine, "threads": 1}}))
        found = encode_every_task(runner)
        for task, ours, theirs in zip(model.tasks, found, model.expected, strict=True):
            assert greatest(ours - theirs) <= FP32_MAX_ABS_DIFF, (engine, task)
        assert greatest(found[0] - found[1]) > 0.01
