"""How far vectors in 8 bit are from those in 16, on texts of several lengths and scripts, and what is near
enough."""

from __future__ import annotations

import numpy as np

from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.heads.dense import pool
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.results import Output
from embedserve_runtime.runner import Runner
from embedserve_runtime.tokenizing import CutRules, TextTokenizer

# Below, 8 bit is refused: neighbours in a large collection are nearer to each other than this.
LEAST_COSINE = 0.999

SENTENCES = (
    "A cat sleeps on the warm windowsill.",
    "Quarterly revenue grew by eight per cent, mostly from subscriptions.",
    "What is the boiling point of water at 3,000 metres above sea level?",
    "def add(a: int, b: int) -> int: return a + b",
    "Der Zug nach Leipzig fährt heute von Gleis sieben ab.",
    "La bibliothèque municipale ferme à dix-huit heures le samedi.",
    "El acuerdo fue firmado por ambas partes en Montevideo.",
    "Большинство участников голосовало за предложение.",
    "明日の会議は午後三時に始まります。",
    "该算法的时间复杂度为线性对数级。",
    "تقع المكتبة بجانب محطة القطار.",
    "How do I reset my password? The link in the e-mail has expired!",
    "Mitochondria produce most of the cell's supply of adenosine triphosphate.",
    "SELECT name, count(*) FROM orders GROUP BY name HAVING count(*) > 10;",
    "The court found that the contract was void for uncertainty.",
    "ok",
)
# Joined sentences of a text, so that lengths go from a word to the most that a model takes.
JOINED = (1, 4, 16)


def texts() -> list[str]:
    """Every sentence alone, and runs of some of them."""
    count = len(SENTENCES)
    return [
        " ".join(SENTENCES[(start + step) % count] for step in range(joined))
        for joined in JOINED
        for start in range(0, count, joined)
    ]


def sample(card: ModelCard) -> PackedBatch:
    """The texts as the model gets them."""
    tokenizer = TextTokenizer.from_card(card)
    return PackedBatch.pack(tokenizer.encode(texts(), "", CutRules(truncate=True)))


def parity_of(runner: Runner, exact: Runner, batch: PackedBatch) -> float:
    """Least cosine of dense vectors, or where a model has none, of means of hidden states. Raises EngineFailure."""
    output = Output.DENSE if Output.DENSE in runner.card.outputs else Output.HIDDEN
    return least_cosine(*(_vectors(one, batch, output) for one in (runner, exact)))


def _vectors(runner: Runner, batch: PackedBatch, output: Output) -> FloatArray:
    results = runner.run(batch, output)
    if results.dense is not None:
        return results.dense
    assert results.hidden is not None, "asked for"
    return pool(np.concatenate(results.hidden), batch.cu_seqlens, Pooling.MEAN)


def least_cosine(first: FloatArray, second: FloatArray) -> float:
    """Of the rows of two arrays, pair by pair; -1 where one is not finite."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / np.maximum(norms, np.finfo(np.float32).tiny)
    return float(cosines.min()) if np.isfinite(cosines).all() else -1.0
