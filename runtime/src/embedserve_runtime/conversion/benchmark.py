"""Runs a variant over the corpus: what outputs it gives, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from embedserve_runtime.config import ParitySettings
from embedserve_runtime.engines.onnx.artifacts import Variant
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch, Tokens
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.heads.dense import normalize, truncate_dimensions
from embedserve_runtime.heads.sparse import write_out
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import LexicalHead, Task
from embedserve_runtime.parity.corpus import choose_evenly, pair_texts
from embedserve_runtime.parity.long_texts import choose_lengths, tokenize_long_texts
from embedserve_runtime.parity.measures import ComparedOutputs, ParityReport, compare_texts, is_out_of_reach
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules

# Tokens of a batch, and of one text of the corpus, which is cut to that length; longer ones are tried beside it.
BATCH_TOKENS = 1024
MAX_TOKENS = 128
# Tokens of all texts together, and floating-point operations of the layers on them: of a larger model fewer texts are
# run, so that a benchmark takes seconds and not minutes.
CORPUS_TOKENS = 4096
CORPUS_OPERATIONS = 1.2e12
# Tokens of the long texts together, and operations of the layers on them: of a model of some billion parameters these
# texts are shorter, or there are none.
LONG_TOKENS = 4096
LONG_OPERATIONS = 2 * CORPUS_OPERATIONS
# The corpus is run again until this long has passed or it ran `TIMED_RUNS` times; the fastest run counts.
TIMED_SECONDS = 0.5
TIMED_RUNS = 3
TRUNCATE = TruncationRules(truncate=True)

Clock = Callable[[], float]


def tokenize_corpus(card: ModelCard, texts: Sequence[str], share: float = 1.0) -> list[Tokens]:
    """Tokenize texts as the model reads them: with the default prompt; as pairs for a reranker.

    Takes as many as fit in `share` of what a benchmark may take, the shortest first.
    """
    tokenizer = TextTokenizer.from_card(replace(card, max_length=min(card.max_length, MAX_TOKENS)))
    if card.task is Task.RERANK:
        read = tokenizer.encode_pairs(pair_texts(texts), TRUNCATE)
    else:
        read = [*tokenizer.encode(texts, card.default_prompt_text, TRUNCATE)]
    tokens = min(CORPUS_TOKENS, CORPUS_OPERATIONS / count_operations(card.encoder))
    return [read[number] for number in choose_evenly([*map(len, read)], int(tokens * share))]


def tokenize_longest(card: ModelCard, texts: Sequence[str]) -> list[Tokens]:
    """Tokenize one text of each of a few lengths beyond the corpus's, up to the longest that the model takes."""
    tokens = int(min(LONG_TOKENS, LONG_OPERATIONS / count_operations(card.encoder)))
    lengths = choose_lengths(min(card.max_length, tokens), MAX_TOKENS, tokens)
    return tokenize_long_texts(card, texts, lengths)


def count_operations(encoder: Encoder) -> int:
    """Count the operations of the products of all layers for one token: two for each weight, experts as if all of them
    ran; 1 at least."""
    weights = (prod(parameter.shape) for parameter in encoder.parameters() if parameter.layer is not None)
    return max(1, 2 * sum(weights))


def describe_variant(precision: str, parity: ParityReport, reason: str, tokens_per_second: float) -> Variant:
    """Describe a variant for the report. reason: why it is not published, empty if it is."""
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
class BenchmarkResult:
    """The outputs and the speed of a variant, for the corpus or for its first texts where it was stopped after them."""

    outputs: ComparedOutputs
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class ParityLimits:
    """The reference that a variant is compared with while it runs, and the floor of the comparison."""

    reference: ComparedOutputs
    floor: ParitySettings


class Benchmark:
    """Runs every variant on the same batches, which hold texts of similar length, and then on long texts one by one.

    texts: sorted by length; the speed is measured on them alone.
    """

    def __init__(self, card: ModelCard, texts: Sequence[Tokens], long_texts: Sequence[Tokens] = ()) -> None:
        self._texts = len(texts) + len(long_texts)
        self._long_batches = [PackedBatch.pack([text]) for text in long_texts]
        self._batches: list[PackedBatch] = []
        pending: list[Tokens] = []
        for text in texts:
            if pending and (len(pending) + 1) * len(text) > BATCH_TOKENS:
                self._batches.append(PackedBatch.pack(pending))
                pending = []
            pending.append(text)
        self._batches.append(PackedBatch.pack(pending))
        self._card = card
        self._weighed_ids = find_weighed_ids(card, [*self._batches, *self._long_batches])

    @property
    def tokens(self) -> int:
        """The tokens of all texts."""
        return sum(batch.tokens for batch in (*self._batches, *self._long_batches))

    def run(
        self,
        runner: Runner,
        limits: ParityLimits | None = None,
        clock: Clock = time.perf_counter,
        on_tokens: Callable[[int], None] = lambda _: None,
    ) -> BenchmarkResult:
        """Run a variant. Its vectors are the model's main output, sparse ones as dense rows; else the means of hidden
        states. Token weights count too. With limits it stops at the batch after which the floor is
        out of reach. on_tokens: is called with the tokens of each batch that has run for the first time."""
        outputs = self._card.main_output
        if outputs is OutputKind.DENSE:
            outputs |= self._card.outputs & OutputKind.SPARSE
        if outputs is OutputKind.LOGITS:
            outputs |= OutputKind.HIDDEN
        elif outputs is OutputKind.MULTI_VECTOR:
            outputs = OutputKind.HIDDEN
        runner.run(self._batches[0], outputs)  # the first call sets memory aside
        best, began = 0.0, clock()
        for number in range(TIMED_RUNS):
            start, tokens = clock(), 0
            parts: list[ComparedOutputs] = []
            for batch in self._batches:
                parts.append(self._get_outputs(runner.run(batch, outputs)))
                tokens += batch.tokens
                on_tokens(0 if number else batch.tokens)
                if limits is not None and self._is_out_of_reach(parts, limits):
                    return BenchmarkResult(ComparedOutputs.join(parts), tokens / (clock() - start))
            best = max(best, tokens / (clock() - start))
            if clock() - began > TIMED_SECONDS:
                break
        for batch in self._long_batches:
            parts.append(self._get_outputs(runner.run(batch, outputs)))
            on_tokens(batch.tokens)
            if limits is not None and self._is_out_of_reach(parts, limits):
                break
        return BenchmarkResult(ComparedOutputs.join(parts), best)

    def _is_out_of_reach(self, parts: Sequence[ComparedOutputs], limits: ParityLimits) -> bool:
        outputs = ComparedOutputs.join(parts)
        by_output = compare_texts(limits.reference.take_first(len(outputs.vectors)), outputs)
        return any(is_out_of_reach(cosines, self._texts, limits.floor) for cosines in by_output)

    def _get_outputs(self, results: ModelOutput) -> ComparedOutputs:
        weights = None
        if results.dense is not None and results.sparse is not None:
            weights = write_out(results.sparse, self._weighed_ids)
        return ComparedOutputs(normalize(self._stack_vectors(results)), results.logits, weights)

    def _stack_vectors(self, results: ModelOutput) -> FloatArray:
        """Return the vectors of all texts, (sequences, dimensions), float32."""
        if results.dense is not None:
            return truncate_dimensions(results.dense, self._card.pipeline.dimensions)
        if results.sparse is not None:
            return write_out(results.sparse, self._weighed_ids)
        return np.stack([hidden.mean(axis=0) for hidden in results.hidden or ()])


def find_weighed_ids(card: ModelCard, batches: Sequence[PackedBatch]) -> Int32Array:
    """Return the token ids that can have a weight in sparse vectors of the batches, ascending: those of the batches
    where a text's own tokens are weighed, else all."""
    if any(isinstance(head, LexicalHead) for head in card.token_heads):
        return np.unique(np.concatenate([batch.token_ids for batch in batches]))
    return np.arange(card.sparse_width, dtype=np.int32)
