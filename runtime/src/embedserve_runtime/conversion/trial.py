"""A variant run over the corpus: what it makes of the texts, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from embedserve_runtime.comparing import cosines
from embedserve_runtime.config import ParitySettings
from embedserve_runtime.engines.base import FloatArray, PackedBatch, Tokens
from embedserve_runtime.engines.onnx.artifacts import Variant
from embedserve_runtime.heads.dense import cut, normalize
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.parity.corpus import evenly, pairs_of
from embedserve_runtime.parity.measures import Observed, Parity, is_lost
from embedserve_runtime.results import Output, Results, SparseVector
from embedserve_runtime.runner import Runner
from embedserve_runtime.tokenizing import CutRules, TextTokenizer

# Tokens of a batch, and of one text, which is cut to so many.
BATCH_TOKENS = 1024
MOST_TOKENS = 128
# Tokens of all texts together, and floating-point operations of the layers on them: of a larger model fewer texts are
# run, so that a trial takes seconds and not minutes.
CORPUS_TOKENS = 4096
CORPUS_OPERATIONS = 1.2e12
# The corpus is run again until this long has passed or it ran so many times; the fastest run counts.
TIMED_SECONDS = 0.5
TIMED_RUNS = 3
CUT = CutRules(truncate=True)

Clock = Callable[[], float]


def sequences_of(card: ModelCard, texts: Sequence[str], share: float = 1.0) -> list[Tokens]:
    """The texts as the model reads them: with the default prompt; as pairs for a reranker. As many as fit in `share` of
    what a trial may take, the shortest first."""
    tokenizer = TextTokenizer.from_card(replace(card, max_length=min(card.max_length, MOST_TOKENS)))
    if card.task is Task.RERANK:
        read = tokenizer.encode_pairs(pairs_of(texts), CUT)
    else:
        prompt = card.prompts[card.default_prompt] if card.default_prompt else ""
        read = [*tokenizer.encode(texts, prompt, CUT)]
    tokens = min(CORPUS_TOKENS, CORPUS_OPERATIONS / operations_of(card.encoder))
    return [read[number] for number in evenly([*map(len, read)], int(tokens * share))]


def operations_of(encoder: Encoder) -> int:
    """Of the products of all layers for one token: two for each weight, experts as if all of them ran; 1 at least."""
    weights = (prod(one.shape) for one in encoder.parameters() if one.layer is not None)
    return max(1, 2 * sum(weights))


def variant_of(precision: str, parity: Parity, reason: str, tokens_per_second: float) -> Variant:
    """What a report says of a variant. reason: why it is not published, empty if it is."""
    return Variant(
        precision=precision,
        published=not reason,
        reason=reason,
        mean_cosine=round(parity.mean_cosine, 6),
        min_cosine=round(parity.min_cosine, 6),
        max_difference=round(parity.max_difference, 6),
        rank_agreement=round(parity.rank_agreement, 6),
        tokens_per_second=round(tokens_per_second, 1),
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """A variant that was run over the corpus, or over its first texts where it was lost after them."""

    observed: Observed
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What a variant is held to while it runs."""

    reference: Observed
    floor: ParitySettings


class Trial:
    """The same batches for every variant: texts of like length together."""

    def __init__(self, card: ModelCard, texts: Sequence[Tokens]) -> None:
        """texts: by length."""
        self._texts = len(texts)
        self._batches: list[PackedBatch] = []
        held: list[Tokens] = []
        for text in texts:
            if held and (len(held) + 1) * len(text) > BATCH_TOKENS:
                self._batches.append(PackedBatch.pack(held))
                held = []
            held.append(text)
        self._batches.append(PackedBatch.pack(held))
        self._card = card

    def run(self, runner: Runner, limits: Limits | None = None, clock: Clock = time.perf_counter) -> Tried:
        """Vectors are what the model is for where that is vectors, sparse ones written out; else the means of hidden
        states. With limits it ends at the batch after which the floor is out of reach."""
        wanted = self._card.main_output
        if wanted is Output.LOGITS:
            wanted |= Output.HIDDEN
        elif wanted is Output.MULTI_VECTOR:
            wanted = Output.HIDDEN
        runner.run(self._batches[0], wanted)  # the first call sets memory aside
        best, began = 0.0, clock()
        for _ in range(TIMED_RUNS):
            start, tokens = clock(), 0
            parts: list[Observed] = []
            for batch in self._batches:
                parts.append(_observed(self._card, runner.run(batch, wanted)))
                tokens += batch.tokens
                if limits is not None and self._is_lost(parts, limits):
                    return Tried(_joined(parts), tokens / (clock() - start))
            best = max(best, tokens / (clock() - start))
            if clock() - began > TIMED_SECONDS:
                break
        return Tried(_joined(parts), best)

    def _is_lost(self, parts: Sequence[Observed], limits: Limits) -> bool:
        vectors = np.concatenate([part.vectors for part in parts])
        found = cosines(limits.reference.vectors[: len(vectors)], vectors)
        return is_lost(found, self._texts, limits.floor)


def _joined(parts: Sequence[Observed]) -> Observed:
    logits = [part.logits for part in parts if part.logits is not None]
    vectors = np.concatenate([part.vectors for part in parts])
    return Observed(vectors, np.concatenate(logits) if logits else None)


def _observed(card: ModelCard, results: Results) -> Observed:
    return Observed(normalize(_vectors(card, results)), results.logits)


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
