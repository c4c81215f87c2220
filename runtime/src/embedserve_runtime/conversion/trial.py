"""A variant run over the corpus: what it makes of the texts, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from embedserve_runtime.conversion.corpus import pairs_of
from embedserve_runtime.conversion.parity import Observed, similarities
from embedserve_runtime.engines.base import FloatArray, PackedBatch, Tokens
from embedserve_runtime.heads.dense import cut, normalize
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.results import Output, Results, SparseVector
from embedserve_runtime.runner import Runner
from embedserve_runtime.tokenizing import CutRules, TextTokenizer

# Tokens of a batch, and of one text, which is cut to so many.
BATCH_TOKENS = 1024
MOST_TOKENS = 256
# Runs of the corpus are timed until this long has passed or so many were made; the fastest counts.
TIMED_SECONDS = 2.0
TIMED_RUNS = 5
CUT = CutRules(truncate=True)

Clock = Callable[[], float]


def sequences_of(card: ModelCard, texts: Sequence[str]) -> list[Tokens]:
    """The texts as the model reads them: with the default prompt; as pairs for a reranker."""
    tokenizer = TextTokenizer.from_card(replace(card, max_length=min(card.max_length, MOST_TOKENS)))
    if card.task is Task.RERANK:
        return tokenizer.encode_pairs(pairs_of(texts), CUT)
    prompt = card.prompts[card.default_prompt] if card.default_prompt else ""
    return [*tokenizer.encode(texts, prompt, CUT)]


class Trial:
    """The same batches for every variant: texts of like length together."""

    def __init__(self, card: ModelCard, texts: Sequence[Tokens]) -> None:
        ordered = sorted(texts, key=len)
        self._batches: list[PackedBatch] = []
        held: list[Tokens] = []
        for text in ordered:
            if held and (len(held) + 1) * len(text) > BATCH_TOKENS:
                self._batches.append(PackedBatch.pack(held))
                held = []
            held.append(text)
        self._batches.append(PackedBatch.pack(held))
        self._card = card

    def observe(self, runner: Runner) -> Observed:
        """Vectors are what the model is for where that is vectors, sparse ones written out; else the means of hidden
        states. Scores: see `parity.Observed`."""
        card = self._card
        wanted = card.main_output
        if wanted is Output.LOGITS:
            wanted |= Output.HIDDEN
        elif wanted is Output.MULTI_VECTOR:
            wanted = Output.HIDDEN
        results = [runner.run(batch, wanted) for batch in self._batches]
        vectors = normalize(np.concatenate([_vectors(card, one) for one in results]))
        if Output.LOGITS in wanted:
            logits = np.concatenate([one.logits for one in results if one.logits is not None])
            return Observed(vectors, np.ascontiguousarray(logits.T))
        return Observed(vectors, similarities(vectors)[None])

    def tokens_per_second(self, runner: Runner, clock: Clock = time.perf_counter) -> float:
        tokens = sum(batch.tokens for batch in self._batches)
        wanted, best, began = self._card.main_output, float("inf"), clock()
        for _ in range(TIMED_RUNS):
            start = clock()
            for batch in self._batches:
                runner.run(batch, wanted)
            best = min(best, clock() - start)
            if clock() - began > TIMED_SECONDS:
                break
        return tokens / best


def _vectors(card: ModelCard, results: Results) -> FloatArray:
    """(sequences, dimensions), float32."""
    if results.dense is not None:
        return cut(results.dense, card.pipeline.dimensions)
    if results.sparse is not None:
        return _written_out(results.sparse, card.encoder.embeddings.vocabulary)
    return np.stack([hidden.mean(axis=0) for hidden in results.hidden or ()])


def _written_out(vectors: Sequence[SparseVector], vocabulary: int) -> FloatArray:
    rows = np.zeros((len(vectors), vocabulary), dtype=np.float32)
    for row, vector in zip(rows, vectors, strict=True):
        row[vector.indices] = vector.values
    return rows
